"""Events of Chrome's JSON traces, in either form and of any size: an array, or an object that holds one.

Most of a file is parsed a piece at a time: a piece is cut where an event seems to end, and the parser itself says
whether that was one. Only where it was not, or where the text is damaged, is an event's end looked for token by token.
An array need not be closed: the format allows that. It knows no event's meaning.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from gputrace.errors import InputError
from gputrace.reading.stream import ByteStream

Event = dict[str, Any]

#: What is made of a piece then fits into a core's cache.
PIECE_BYTES = 1 << 18
#: Members of the object other than its events are kept up to this size; beyond, they are passed over.
MOST_FACT_BYTES = 1 << 20
MOST_DEPTH = 512

_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_CANDIDATES = 4
_TAIL_BYTES = 1 << 14
# A lone quote begins a string that the buffer does not hold to its end.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
_SPACE = re.compile(rb"[\s,]*")
_SCALAR = re.compile(rb"[^\s,\]}]+")
# A double holds ns only below 2^43 us; a time since 1970 in us needs its digits as they stand. One pattern a member,
# for what begins with fixed bytes is found several times as quickly.
_LONG_TS, _LONG_DUR = (re.compile(rb'("%b"\s*+:\s*+)(\d{13,}+\.\d++)' % key) for key in (b"ts", b"dur"))
_ALL_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_ZEROS = b"0" * 13 + b"."
_HALF = re.compile("[\ud800-\udfff]")


class ChromeReader:
    """The events of a stream, by the piece; then ``facts``, the other members of the object they lie in.

    ``notes`` say what could not be read, with its place; the rest is read all the same. A time of so many digits that a
    double would lose some is given as a str. ``closed``: the array or object was read to its bracket.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.facts: dict[str, Any] = {}
        self.notes: list[str] = []
        self.has_events = False
        self.closed = False
        self.skipped = 0
        self._data = b""
        self._at = 0  # in _data
        self._ended = False
        self._torn = False

    def batches(self) -> Iterator[list[Event]]:
        """Lists of events in the order of the file. Raises `InputError` where the file is no such trace."""
        first = self._peek()
        if first == b"[":
            self._at += 1
            yield from self._events()
        elif first == b"{":
            self._at += 1
            yield from self._members()
        else:
            raise InputError(self.stream.path, self._place, "no JSON begins here")
        if not self.has_events:
            what = (
                "it is cut short before its first event" if self.cut_short else 'it is JSON, but holds no "traceEvents"'
            )
            raise InputError(self.stream.path, 0, what)
        if self.stream.torn:
            self.notes.append(self.stream.torn)

    @property
    def cut_short(self) -> bool:
        """Does the file end before the array or object does?"""
        return self._ended and not self.closed

    @property
    def _place(self) -> int:
        return self.stream.place - len(self._data) + self._at

    def _more(self) -> bool:
        """Read another piece behind what is left. False at the end."""
        # As much again as is kept: a long value is copied a few times, not once a piece.
        new = self.stream.read(max(PIECE_BYTES, len(self._data) - self._at))
        if not new:
            self._ended = True
            return False
        self._data = self._data[self._at :] + new
        self._at = 0
        if len(self._data) > self.stream.limits.most_record_bytes:
            raise InputError(
                self.stream.path, self._place, f"one value takes over {self.stream.limits.most_record_bytes:,} bytes"
            )
        return True

    def _peek(self) -> bytes:
        """The next byte that is neither space nor comma; b"" at the end."""
        while True:
            if self._at == 0 and self._data.startswith(b"\xef\xbb\xbf"):
                self._at = 3
            match = _SPACE.match(self._data, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            if not self._more():
                return b""

    def _members(self) -> Iterator[list[Event]]:
        """An object's members, up to its end."""
        while (next_byte := self._peek()) == b'"':
            end = self._value_end()
            key = _parse(self._data[self._at : end]) if end > 0 else None
            if not isinstance(key, str):
                break
            self._at = end
            if self._peek() != b":":
                break
            self._at += 1
            value = self._peek()
            if key == "traceEvents" and value == b"[":
                self._at += 1
                yield from self._events()
                continue
            if not self._keep_fact(key):
                break
        self.closed = next_byte == b"}"
        if not self.closed:
            self._note_tear()

    def _keep_fact(self, key: str) -> bool:
        end = self._value_end()
        if end < 0:
            return False
        if end - self._at <= MOST_FACT_BYTES:
            value = _parse(self._data[self._at : end])
            if not isinstance(value, _Unreadable):
                self.facts[key] = value
        self._at = end
        return True

    def _note_tear(self) -> None:
        if not self.stream.torn and not self._torn:
            self._torn = True
            what = "it is cut short" if self._ended else "no JSON follows"
            self.notes.append(f"from byte {self._place:,} on {what}")

    def _events(self) -> Iterator[list[Event]]:
        """An array's elements, up to its end."""
        self.has_events = True
        while True:
            found = self._piece()
            if found:
                yield found
                continue
            next_byte = self._peek()
            if next_byte in (b"]", b""):
                self._at += len(next_byte)
                self.closed = bool(next_byte)
                return
            found, goes_on = self._one_by_one()
            if found:
                yield found
            if not goes_on:
                self._note_tear()
                self._at = len(self._data)
                return

    def _piece(self) -> list[Event]:
        """Many events at once; none where that does not work."""
        if len(self._data) - self._at < PIECE_BYTES and not self._ended:
            self._more()
        data = self._data
        cuts = [m.start() + 1 for m in _BETWEEN.finditer(data, max(self._at, len(data) - _TAIL_BYTES))]
        for cut in cuts[: -_CANDIDATES - 1 : -1]:
            start = _SPACE.match(data, self._at)
            assert start is not None
            try:
                found = orjson.loads(b"[" + _exact_times(data[start.end() : cut]) + b"]")
            except orjson.JSONDecodeError:
                continue
            self._at = cut
            return self._dicts(found)
        return []

    def _one_by_one(self) -> tuple[list[Event], bool]:
        """The events of what is read by now, each found by its end; whether more can follow."""
        found: list[Any] = []
        while True:
            place = self._place
            end = self._value_end()
            if end < 0:
                return self._dicts(found), False
            text = self._data[self._at : end]
            self._at = end
            event = _parse(_exact_times(text))
            if isinstance(event, _Unreadable):
                self.skipped += 1
                if self.skipped <= 8:
                    self.notes.append(f"the event at byte {place:,} cannot be read: {event.why}")
            else:
                found.append(event)
            if len(found) >= 4096 or len(self._data) - self._at < 4096 or self._peek() in (b"]", b""):
                return self._dicts(found), True

    def _dicts(self, found: list[Any]) -> list[Event]:
        if set(map(type, found)) <= {dict}:
            return found
        events = [event for event in found if isinstance(event, dict)]
        self.skipped += len(found) - len(events)
        return events

    def _value_end(self) -> int:
        """Where the value ends that begins here, after reading what it takes; -1 if the file ends first."""
        if self._peek() not in (b"{", b"[", b'"'):
            while True:
                match = _SCALAR.match(self._data, self._at)
                if match is None:
                    return -1
                if match.end() < len(self._data) or not self._more():
                    return match.end()
        depth, at = 0, self._at
        while True:
            for match in _TOKEN.finditer(self._data, at):
                token = match[0]
                if token == b'"':  # its end is not here yet
                    at = match.start()
                    break
                if token in (b"{", b"["):
                    depth += 1
                elif token in (b"}", b"]"):
                    depth -= 1
                if depth <= 0:
                    return match.end()
                at = match.end()
            before = self._at
            if not self._more():
                return -1
            at -= before


class _Unreadable:
    def __init__(self, why: str) -> None:
        self.why = why


def _exact_times(text: bytes) -> bytes:
    # Most texts have none, which this sees several times as quickly as a pattern does.
    left = text.translate(_ALL_ZEROS).count(_LONG_ZEROS)
    for pattern in (_LONG_TS, _LONG_DUR):
        if left:
            parts = pattern.split(text)
            parts[2::3] = [b'"%b"' % digits for digits in parts[2::3]]
            text = b"".join(parts)
            left -= len(parts) // 3
    return text


def _parse(text: bytes) -> Any:
    """One value: by the strict parser, or the lenient one for NaN, stray control characters and broken UTF-8."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        why = str(error)
    if text.count(b"{") + text.count(b"[") <= MOST_DEPTH:
        try:
            return encodable(json.loads(text.decode("utf-8", "replace"), strict=False))
        except (ValueError, RecursionError) as error:
            why = str(error)
    return _Unreadable(why.partition(": line")[0])


def encodable(value: Any) -> Any:
    """``value`` with its texts such as UTF-8 can hold them: half a character, which JSON can spell, becomes U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else _HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    return [encodable(each) for each in value] if isinstance(value, list) else value


def time_ns(value: Any) -> int | None:
    """A time or duration of an event (us: a number, or text of one) in whole ns; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1000 if abs(value) < 1 << 62 else None
    if isinstance(value, float):
        return round(value * 1000) if abs(value) < 1e16 else None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(-?)(\d{1,18})(?:\.(\d+))?\s*", value)
        if match:
            ns = int(match[2]) * 1000
            if match[3]:
                digits = match[3][:4].ljust(4, "0")
                ns += int(digits[:3]) + (digits[3] >= "5")
            return -ns if match[1] else ns
    return None
