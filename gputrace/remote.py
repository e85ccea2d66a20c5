"""Traces that lie elsewhere: files named by a URL, of any storage that fsspec knows (s3, gs, https, sftp, ...).

What is to be read is fetched whole into a private temporary file, which has lost its name by the time it is read: it is
gone however the process ends. What is to be written is a file here first. It knows no trace; only a URL imports fsspec.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from gputrace.errors import InputError, UsageError
from gputrace.masking import mask

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z0-9+.:-]+)?://")
#: One of them anywhere in a chain (simplecache::https://) is enough: what it takes at the front it cannot pass on.
_WEB = frozenset({"http", "https"})
_READ_ONLY = _WEB | {"data", "generic", "gist", "git", "github", "libarchive", "reference", "tar"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?=::|://)")
_INSTALL = "pip install 'gputrace[remote]'"
#: A transfer is tried so often, with such waits between: what fails for a moment is over by then.
_WAITS_S = (0.5, 1.0, 2.0)
#: Waiting does not help against these.
_FINAL = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(NotImplementedError, ImportError, InputError),
)
#: A server that says nothing for so long has lost us. A transfer as a whole may take its time.
_SILENCE_S = 60.0


class Remote(str):
    """A file elsewhere. As text it is its URL as it may be shown, with its secrets masked."""

    __slots__ = ("fs", "path")
    fs: Any
    path: str

    def __new__(cls, shown: str, fs: Any, path: str) -> Remote:
        made = super().__new__(cls, shown)
        made.fs, made.path = fs, path
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (str(self), self.fs, self.path)


class Fetched(str):
    """A file that is shown as one name, as the URL that it was fetched from, and opened as another, ``local``."""

    __slots__ = ("local",)
    local: str

    def __new__(cls, shown: str, local: str) -> Fetched:
        made = super().__new__(cls, shown)
        made.local = local
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Fetched, (str(self), self.local)


def is_url(name: str) -> bool:
    return isinstance(name, Remote) or _URL.match(name) is not None


def to_open(name: str) -> str:
    """The path under which a file can be opened now that is told of as ``name``."""
    return name.local if isinstance(name, Fetched) else name


def shown(name: str) -> str:
    """A URL without its secrets; of any other name, itself."""
    return mask([name])[0] if is_url(name) else name


def find(url: str, suffixes: tuple[str, ...] = ()) -> list[Remote]:
    """The files that a URL names, in order: one; those that match it as a pattern; or those in a folder, and in folders
    in it, that end in one of ``suffixes``, gzipped or not. None, if a pattern matches none or a folder holds none.

    Raises `InputError` if there is no such file, or it cannot be asked for.
    """
    if isinstance(url, Remote):
        return [url]
    import glob

    with _told(url, "cannot be looked for"):
        fs, path = open_storage(url)
        if glob.has_magic(path) and not (_is_web(fs) and not glob.has_magic(path.partition("?")[0])):
            found = sorted(fs.glob(path)) if not fs.exists(path) else [path]
            return [_remote(fs, each, url, path) for each in found if _is_web(fs) or not fs.isdir(each)]
        if not _is_web(fs) and fs.info(path)["type"] == "directory":
            # Hidden ones are other people's business, as on a disk.
            inside = [each for each in sorted(fs.find(path)) if "/." not in each[len(path.rstrip("/")) :]]
            traces = [each for each in inside if each.lower().removesuffix(".gz").endswith(suffixes)]
            return [_remote(fs, each, url, path) for each in traces]
        return [_remote(fs, path, url, path)]


@contextlib.contextmanager
def here(name: str) -> Iterator[str]:
    """A file that can be opened (by `to_open`): a local one is itself; of a URL, fetched for the time of the block.

    Raises `InputError` if it cannot be fetched, or the URL names several files.
    """
    if isinstance(name, Fetched) or not is_url(name):
        yield name
        return
    remote = _only(name)
    if (local := local_path(remote.fs, remote.path)) is not None:
        yield Fetched(remote, local)
        return
    import tempfile  # what `record` needs of this module does without

    with _told(remote, "cannot be fetched"), tempfile.TemporaryDirectory(prefix="gputrace-") as folder:
        local = os.path.join(folder, "trace")
        os.close(os.open(local, os.O_CREAT | os.O_EXCL, 0o600))
        retried(lambda: _fetch(remote, local))
        file = open(local, "rb")  # noqa: SIM115 - closed below
    with file:
        # Each open of it there begins at its first byte, which a copy of the descriptor would not.
        yield Fetched(remote, f"/proc/self/fd/{file.fileno()}")


def check_output(url: str) -> None:
    """Raises `UsageError` if nothing can be written to a URL, as far as can be told without asking the storage."""
    scheme = url.partition(":")[0].lower()
    if read_only := _READ_ONLY.intersection(each.lower() for each in _SCHEME.findall(url.partition("?")[0])):
        what = "a web server" if read_only & _WEB else f"{min(read_only)}://"
        raise UsageError(
            f"cannot write {shown(url)}: {what} takes no files. Write to a path here and upload that yourself, or name "
            "a bucket (s3://, gs://)"
        )
    _need_fsspec(url)
    if not os.path.basename(url):
        raise UsageError(f"cannot write {shown(url)}: it is a folder; name a file in it, {shown(url)}trace.pftrace")
    from fsspec.registry import known_implementations, registry

    known = known_implementations.get(scheme)
    if known is None and scheme not in registry:
        raise UsageError(f"cannot write {shown(url)}: fsspec knows no storage {scheme}://")
    if known is not None and importlib.util.find_spec(known["class"].partition(".")[0]) is None:
        raise UsageError(f"cannot write {shown(url)}: {known.get('err', 'its package is missing')}: {_INSTALL}")


def path_here(url: str) -> str | None:
    """The path that a URL of this machine's own files means; None for any other."""
    if url.partition(":")[0].lower() not in ("file", "local"):
        return None
    from fsspec.implementations.local import LocalFileSystem

    path = LocalFileSystem._strip_protocol(url)
    assert isinstance(path, str)
    return path


def local_path(fs: Any, path: str) -> str | None:
    """Where a file of this machine lies that was named by a URL all the same; None of any other."""
    from fsspec.implementations.local import LocalFileSystem

    return path if isinstance(fs, LocalFileSystem) else None


def open_storage(url: str) -> tuple[Any, str]:
    """The storage that a URL names, and the path in it. Raises `UsageError` without fsspec, or for a URL that it does
    not know.
    """
    _need_fsspec(url)
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    if url.lower().startswith(("http://", "https://")) and importlib.util.find_spec("aiohttp"):
        from aiohttp import ClientTimeout

        # By itself it would end any transfer after five minutes.
        timeout = ClientTimeout(total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
        options["client_kwargs"] = {"timeout": timeout}
    try:
        fs, path = url_to_fs(url, **options)
    except ImportError as error:
        raise UsageError(f"{shown(url)}: {error}: {_INSTALL} brings what s3, gs and https take") from error
    except ValueError as error:
        raise UsageError(f"{shown(url)}: {why(error)}") from error
    return fs, path


def _need_fsspec(url: str) -> None:
    if importlib.util.find_spec("fsspec") is None:
        raise UsageError(f"{shown(url)}: a URL needs fsspec: {_INSTALL}")


def put(local: str, fs: Any, path: str, progress: Callable[[int, int], None] | None = None) -> None:
    """Write a file of this machine to a storage, and make sure that all of it is there, where that can be asked.

    ``progress`` is told (bytes that went, of how many), of any thread. Raises what the storage does.
    """
    from fsspec.callbacks import Callback

    size = os.path.getsize(local)

    def transfer() -> None:
        said = {"progress": lambda whole, done, **_: progress and progress(done, whole or size)}
        fs.put_file(local, path, callback=Callback(size=size, hooks=said))
        got = None
        with contextlib.suppress(Exception):  # one may be allowed to write there and not to look
            fs.invalidate_cache(fs._parent(path))
            got = fs.info(path).get("size")
        if got is not None and got != size:
            raise OSError(f"{got:,} of {size:,} bytes arrived")

    retried(transfer)


def retried(transfer: Callable[[], None]) -> None:
    """Do it, again if it fails and a moment may help. Raises what it last raised."""
    for wait_s in _WAITS_S:
        try:
            return transfer()
        except _FINAL:
            raise
        except Exception:  # storages raise what they like
            time.sleep(wait_s)
    return transfer()


def why(error: BaseException) -> str:
    """What a storage says, in one line that may be shown."""
    text = " ".join((error.strerror if isinstance(error, OSError) and error.strerror else str(error)).split())
    named = text if isinstance(error, OSError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
    return mask([named])[0]


def _remote(fs: Any, path: str, url: str, asked: str) -> Remote:
    """``asked`` is the path in ``url``: what stands before it (a host, a user) is of this path, too."""
    url = url.rstrip("/")
    whole = url.removesuffix(asked) + path if asked and url.endswith(asked) else fs.unstrip_protocol(path)
    return Remote(shown(whole), fs, path)


def _is_web(fs: Any) -> bool:
    """There, a question mark begins a query, and nothing is a folder."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return bool({"http", "https"} & set(protocols))


def _only(name: str) -> Remote:
    found = find(name)
    if len(found) != 1:
        how_many = f"matches {len(found):,} files: give one of them" if found else "matches no file"
        raise InputError(shown(name), 0, how_many)
    return found[0]


def _fetch(remote: Remote, local: str) -> None:
    import shutil
    import tempfile

    size = remote.fs.info(remote.path).get("size")
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if size is not None and size > free:
        raise _no_room(remote, folder, free, size)
    try:
        remote.fs.get_file(remote.path, local)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(remote, folder, free, size) from error
        raise
    got = os.path.getsize(local)
    if size is not None and got != size:
        raise OSError(f"{got:,} of {size:,} bytes came")


def _no_room(remote: Remote, folder: str, free: int, size: int | None) -> InputError:
    needs = f"{size:,} bytes" if size is not None else "more"
    return InputError(
        remote, 0, f"does not fit into {folder}: it takes {needs}, and {free:,} are free. TMPDIR names another folder"
    )


@contextlib.contextmanager
def _told(url: str, what: str) -> Iterator[None]:
    """What a storage raises, as an `InputError` that says what to do."""
    try:
        yield
    except (InputError, UsageError):
        raise
    except Exception as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else why(error)
        raise InputError(shown(url), 0, f"{what}: {reason}{_advice(error)}") from error


def _advice(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return ""
    if isinstance(error, PermissionError) or "redential" in type(error).__name__ + str(error):
        return ". Are the credentials there that this storage's own tool would take (environment, files in your home)?"
    return ". Try again, or fetch it by the storage's own tool"
