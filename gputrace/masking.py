"""Takes the secrets out of command lines: traces get shared.

What is masked: the value of an option, variable, header or parameter whose name says that it is a secret
(``--token X``, ``--token=X``, ``API_KEY=X``, ``"Authorization: X"``, ``?sig=X``), the credentials in a URL, and keys of
well-known kinds by their form. It knows nothing else, so a secret given as a bare argument is not seen. Rather too much
is masked than too little. Written without `re`, which a traced program would pay for.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

MASK: Final = "***"

# A name is a secret's if a part of it is, or ends in, one of the first; or if its last part is one of the second, which
# are harmless elsewhere: `--token-file`, `--key-dim`, `AWS_ACCESS_KEY_ID`.
_STRONG: Final = ("password", "passwd", "passphrase", "passcode", "secret", "secrets", "credential", "credentials")
_LAST: Final = (
    *("token", "key", "apikey", "accesskey", "secretkey", "privatekey", "pass", "pwd", "pw", "pat", "jwt", "auth"),
    *("authorization", "bearer", "cookie", "session", "sessionid", "sig", "signature", "pin", "otp", "sas", "dsn"),
)
# ... and not if its last part says that it only leads to one.
_ELSEWHERE: Final = ("file", "path", "dir", "folder", "name", "env")

_KNOWN_KEYS: Final = (
    *("sk-", "sk_live_", "sk_test_", "rk_live_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("hf_", "xoxb-", "xoxp-", "xoxa-", "xapp-", "AKIA", "ASIA", "AIza", "ya29.", "npm_", "pypi-", "dop_v1_"),
    *("SG.", "nvapi-", "eyJ"),
)
_KEY_LENGTH: Final = 16
_LETTERS_LENGTH: Final = 30

_SCHEMES_WITH_USERS: Final = ("ssh", "git+ssh", "sftp", "scp")
_QUOTES: Final = "\"'"
_VALUE_ENDS: Final = " \t\n&;,)}]" + _QUOTES


def mask(command_line: Iterable[str]) -> list[str]:
    """A command line with its secrets replaced by ``***``."""
    masked: list[str] = []
    option_takes_secret = False
    for argument in command_line:
        if option_takes_secret and not argument.startswith("--"):
            masked.append(MASK)
            option_takes_secret = False
            continue
        name, equals, _ = argument.partition("=")
        option_takes_secret = argument.startswith("-") and not equals and is_secret(argument)
        if equals and _is_name(name) and is_secret(name):
            masked.append(f"{name}={MASK}")  # whatever is behind it, blanks too
        else:
            masked.append(_mask_text(argument))
    return masked


def is_secret(name: str) -> bool:
    """Does a name say that its value is a secret? ``API_KEY``, ``--apiKey``, ``db.password``."""
    parts = _parts(name)
    if not parts or parts[-1] in _ELSEWHERE:
        return False
    return parts[-1] in _LAST or any(part.endswith(_STRONG) for part in parts) or parts[-1].endswith("token")


def _parts(name: str) -> list[str]:
    for separator in "-._/[]+":
        name = name.replace(separator, " ")
    return name.lower().split()


def _is_name(text: str) -> bool:
    return bool(text) and all(map(_in_name, text))


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "-_.+/[]"


def _mask_text(text: str) -> str:
    """The secrets inside one argument: a header, a query, a piece of JSON, of a script or of a program."""
    return _mask_keys(_mask_assignments(_mask_urls(text)))


def _mask_urls(text: str) -> str:
    done = ""
    while True:
        before, found, text = text.partition("://")
        done += before + found
        if not found:
            return done
        scheme = before[len(before.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-")) :]
        end = next((place for place, character in enumerate(text) if character in " \t\n/?#" + _QUOTES), len(text))
        user, at, host = text[:end].rpartition("@")
        user, colon, _ = user.partition(":")
        if colon:
            user += f":{MASK}"
        elif at and scheme not in _SCHEMES_WITH_USERS:
            user = MASK
        done += user + at + host
        text = text[end:]


def _mask_assignments(text: str) -> str:
    """``NAME=VALUE``, ``NAME: VALUE``, ``"NAME": "VALUE"``, ``--NAME VALUE``, ``"--NAME", "VALUE"`` in a text."""
    done, place = "", 0
    while place < len(text):
        if not _in_name(text[place]):
            done += text[place]
            place += 1
            continue
        start = place
        while place < len(text) and _in_name(text[place]):
            place += 1
        name = text[start:place]
        done += name
        value = None
        if is_secret(name):
            value = _value(text, place) or (_value_of_option(text, place) if name.startswith("-") else None)
        if value is not None:
            first, last = value
            done += text[place:first] + MASK
            place = last
    return done


def _value(text: str, place: int) -> tuple[int, int] | None:
    """Where the value begins and ends that is given to the name that ends at ``place``; None if none is given."""
    while place < len(text) and text[place] in _QUOTES + " ":
        place += 1
    separator = text[place : place + 1]
    if not separator or separator not in "=:" or text[place : place + 2] in ("==", ":/"):
        return None
    place += 1
    while place < len(text) and text[place] == " ":
        place += 1
    if text[place : place + 1] in _QUOTES and place < len(text):
        quote = text[place]
        end = text.find(quote, place + 1)
        return (place + 1, len(text) if end < 0 else end)
    ends = _QUOTES + "\n" if separator == ":" else _VALUE_ENDS  # a header's value may have blanks: "Bearer X"
    end = next((at for at in range(place, len(text)) if text[at] in ends), len(text))
    return (place, end) if end > place else None


def _value_of_option(text: str, place: int) -> tuple[int, int] | None:
    """The same of an option, as a shell's line or a list of arguments has it: behind blanks, or a comma."""
    start = place
    while place < len(text) and text[place] in _QUOTES + " ,":
        place += 1
    between = text[start:place]
    if place == len(text) or between.strip(_QUOTES) == "" or text.startswith("--", place):
        return None
    ends = between[-1] if between[-1] in _QUOTES else _VALUE_ENDS + "|"
    end = next((at for at in range(place, len(text)) if text[at] in ends), len(text))
    return (place, end) if end > place else None


def _mask_keys(text: str) -> str:
    """Words that have the form of a well-known service's keys."""
    if not any(known in text for known in _KNOWN_KEYS):
        return text
    done, place = "", 0
    while place < len(text):
        end = place
        while end < len(text) and (text[end].isalnum() or text[end] in "-_."):
            end += 1
        word = text[place:end]
        # A word of the language that begins alike has no digits, or is short, or is not of mixed case.
        random = any(map(str.isdigit, word)) or (len(word) >= _LETTERS_LENGTH and not word.islower())
        is_key = word.startswith(_KNOWN_KEYS) and len(word) >= _KEY_LENGTH and random
        done += (MASK if is_key else word) + text[end : end + 1]
        place = end + 1
    return done
