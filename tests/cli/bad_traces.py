"""Files that people give a trace reader by mistake, or that broke on the way; and what of each is good."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.merging.making import Host, program, write_trace


class Bad(NamedTuple):
    """``make`` writes the file at a path. ``good`` is how many slices of it can be read; None: it is no trace.

    ``told`` is what those commands say of it that read it themselves, "" where there is nothing to tell.
    """

    name: str
    make: Callable[[Path], object]
    good: int | None
    told: str


def event(phase: str, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": "e", "ts": 1, "pid": 1, "tid": 1, **more}


GOOD = [event("X", ts=10 * k, dur=5, name=f"good {k}") for k in range(4)]


def text(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def events(*bad: dict[str, Any]) -> Callable[[Path], object]:
    """Among good ones."""
    return text(json.dumps([*GOOD[:2], *bad, *GOOD[2:]]))


def trace(path: Path) -> bytes:
    return write_trace(path, Host("h"), program()).read_bytes()


def cut(path: Path) -> None:
    path.write_bytes(trace(path)[:-400])


def cut_gzip(path: Path) -> None:
    lines = b",\n".join(json.dumps({**each, "id": random.Random(k).random()}).encode() for k, each in enumerate(GOOD))
    path.write_bytes(gzip.compress(b"[" + lines + b"]", mtime=0)[:-20])


def head(path: Path) -> None:
    path.write_bytes(trace(path)[:20])


def head_of_gzip(path: Path) -> None:
    path.write_bytes(trace(path)[:200])


def damaged(path: Path) -> None:
    data = trace(path)
    path.write_bytes(data[:-200] + b"\xff" * 200)


def misnamed(path: Path) -> None:
    trace(path.with_suffix(".pftrace"))
    path.with_suffix(".pftrace").rename(path)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trace.json", json.dumps(GOOD))


def bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(b"[" + b" " * (4 << 20) + b"]", mtime=0))


def twice_zipped(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.compress(json.dumps(GOOD).encode(), mtime=0), mtime=0))


DEEP = 5_000
HEAD = "is only the beginning of a trace"

BAD = [
    Bad("empty.pftrace", text(b""), None, "is empty"),
    Bad("empty.json.gz", text(gzip.compress(b"", mtime=0)), None, "is empty"),
    Bad("prose.json", text("once upon a time"), None, "is not a trace"),
    Bad("other.json", text('{"a": 1}'), None, 'holds no "traceEvents"'),
    Bad("scalar.json", text('{"traceEvents": 5}'), None, 'holds no "traceEvents"'),
    Bad("page.json", text("<html><body>404</body></html>"), None, "a web page"),
    Bad("archive.json", zipped, None, "a zip archive"),
    Bad("twice.json.gz", twice_zipped, None, "is not a trace"),
    Bad("bomb.json.gz", bomb, None, "it was made to fill memory"),
    Bad("long line.json", text('[{"ph":"X","name":"' + "x" * (3 << 20)), None, "one value takes over 2,097,152 bytes"),
    Bad("head.pftrace", head, None, HEAD),
    Bad("head.pftrace.gz", head_of_gzip, None, HEAD),
    Bad("head.json", text('[\n{"ph": "M", "name": "process_name", "pid": 1}'), None, HEAD),
    Bad("head of object.json", text('{"displayTimeUnit": "ns", "traceEv'), None, HEAD),
    Bad("cut.pftrace", cut, 5, "cut short"),
    Bad("damaged.pftrace", damaged, 8, "holds no packet"),
    Bad("cut.json", text(json.dumps(GOOD)[:-30]), 3, "cut short"),
    Bad("cut.json.gz", cut_gzip, 3, "cut short"),
    Bad("suffix.json", misnamed, 9, ""),
    Bad("suffix.pftrace", text(json.dumps(GOOD)), 4, ""),
    Bad("nothing.json", text("[]"), 0, ""),
    Bad("not utf-8.json", text(json.dumps(GOOD).replace("good 1", "b\xe4d").encode("latin-1")), 4, ""),
    Bad("broken event.json", text(json.dumps(GOOD)[:-1] + ', {"ph": "X",, "ts": 1}]'), 4, "cannot be read"),
    Bad("no number.json", text(json.dumps([*GOOD, event("X", ts=float("nan"), dur=1)])), 4, "have no time"),
    Bad("negative.json", events(event("X", ts=-3, dur=1), event("X", dur=-1)), 5, "negative duration"),
    Bad("text times.json", events(event("X", ts="5.5", dur="1.25"), event("X", ts="soon", dur=1)), 5, "have no time"),
    Bad("no end.json", events(event("B", name="open")), 5, ""),
    Bad("no begin.json", events(event("E")), 4, "close nothing"),
    Bad("overlapping.json", events(event("X", ts=12, dur=10)), 5, ""),
    Bad("text ids.json", events(event("X", ts=50, dur=1, pid="1", tid="1"), event("X", pid="GPU 0", dur=1)), 6, ""),
    Bad("odd values.json", events(event("X", name=["a"], pid={"b": 1}, tid=1.5, dur=1, args=3, cat=None)), 5, ""),
    Bad("tracks.json", text(json.dumps([event("X", tid=k + 1, dur=1) for k in range(3_000)])), 3_000, ""),
    Bad(
        "deep.json",
        text(json.dumps([event("B", ts=k) for k in range(DEEP)] + [event("E", ts=DEEP + k) for k in range(DEEP)])),
        DEEP,
        "",
    ),
    Bad(
        "deep value.json",
        text(json.dumps(GOOD)[:-1] + ', {"ph":"X","args":{"a":' + "[" * 9_000 + "]" * 9_000 + "}}]"),
        4,
        "cannot be read",
    ),
]
