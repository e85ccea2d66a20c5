"""What is good of a shard of Chrome's JSON with rot in it, line by line (`exporters/chrome.py` writes them)."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Container

    Row = tuple[int, int]

_START, _END = b'{"ph":"', b"},\n"
#: Longer than any line of ours: what has no newline for so long is no line.
_LONGEST = 64 << 20
_SLICE, _ARROW = ("B", "E"), ("s", "t", "f")
#: What the lines of each phase have, but for "args" and "tid": two that rot made one may be JSON yet.
_MEMBERS = {
    "M": {"ph", "pid", "name"},
    "B": {"ph", "pid", "name", "ts"},
    "E": {"ph", "pid", "ts"},
    "C": {"ph", "pid", "name", "ts"},
    "i": {"ph", "pid", "name", "ts", "s"},
    "s": {"ph", "pid", "name", "ts", "cat", "id"},
    "t": {"ph", "pid", "name", "ts", "cat", "id"},
    "f": {"ph", "pid", "name", "ts", "cat", "id", "bp"},
}
_KINDS = {"args": dict, "pid": int, "tid": int, "ts": float}
_KINDS |= dict.fromkeys(("ph", "name", "s", "cat", "id", "bp"), str)
_ID = re.compile("0x[0-9a-f]+")
_ENDED = '{{"ph":"E","pid":{},"tid":{},"args":{{"ended":"the recording is damaged here"}},"ts":{}}},\n'


def mend(shard: IO[bytes], length: int, mended: IO[bytes] | None, _: Container[int]) -> tuple[int, int]:
    """The bytes of lines that are none; copies the others, if ``mended`` is given. Raises OSError."""
    lost = 0
    rows = _Rows()
    after_loss = False
    left = length
    while left > 0 and (line := shard.readline(min(left, _LONGEST))):
        left -= len(line)
        event = _event(line)
        if event is None:
            lost += len(line)
            if mended is not None and not after_loss:
                mended.write(rows.cut())
            after_loss = True
            continue
        # An arrow is of the slice whose line it stands beside.
        beside = after_loss and event["ph"] in _ARROW
        after_loss = after_loss and beside
        if beside or not rows.take(event, line):
            lost += len(line)
        elif mended is not None:
            mended.write(line)
    return lost, 0


def _event(line: bytes) -> dict[str, Any] | None:
    if not (line.startswith(_START) and line.endswith(_END)):
        return None
    try:
        event = orjson.loads(line[:-2])
    except ValueError:
        return None
    if not isinstance(event, dict) or event.keys() - {"args", "tid"} != _MEMBERS.get(event["ph"]):
        return None
    good = all(isinstance(value, _KINDS[name]) for name, value in event.items())
    arrow_or_other = event["ph"] not in _ARROW or _ID.fullmatch(event["id"])
    return event if good and arrow_or_other and (event["ph"] not in _SLICE or "tid" in event) else None


class _Rows:
    """How deep slices are open on each row since the last loss, and where its last edge stands."""

    def __init__(self) -> None:
        self._depth: dict[Row, int] = {}
        self._last: dict[Row, bytes] = {}
        self._lossless = True

    def take(self, event: dict[str, Any], line: bytes) -> bool:
        """Is the line to be kept? An end is not, whose begin was before a loss, or in it."""
        if event["ph"] not in _SLICE:
            return True
        row = (event["pid"], event["tid"])
        depth = self._depth.get(row, 0)
        if event["ph"] == "B":
            self._depth[row] = depth + 1
        elif depth:
            self._depth[row] = depth - 1
        else:
            return self._lossless
        self._last[row] = line
        return True

    def cut(self) -> bytes:
        """The lines that end all that is open."""
        lines = []
        for (pid, tid), depth in self._depth.items():
            if depth:
                time = self._last[pid, tid].rpartition(b'"ts":')[2].removesuffix(_END).decode()
                lines.append(_ENDED.format(pid, tid, time) * depth)
        self._depth.clear()
        self._lossless = False
        return "".join(lines).encode()
