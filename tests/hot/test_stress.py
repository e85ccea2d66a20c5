"""Many threads at once, spans and windows of every kind: under either twin the trace holds each, and no other."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gputrace
from tests.hot.twin import TWINS, in_twin
from tests.recorded import Run, recording

THREADS, ROUNDS = 8, 120
Said = Counter[tuple[bool, str | None, tuple[tuple[str, Any], ...]]]


def work(run: Run, streams: list[Any], n: int, said: Said, windows: list[Any], lock: threading.Lock) -> None:
    """Open spans and windows on streams that all share; note each: (on the GPU, name, args)."""
    chosen = random.Random(n)

    def note(name: str, stream: Any, **args: Any) -> None:
        with lock:
            said[False, name, tuple(sorted(args.items()))] += 1
            if stream is not None:
                said[True, name, tuple(sorted(args.items()))] += 1

    def nest(depth: int) -> None:
        stream, name = chosen.choice(streams), f"{n} {chosen.randrange(50)}"
        args = {"n": chosen.randrange(5), "text": "x" * chosen.randrange(3)} if chosen.random() < 0.5 else {}
        note(name, stream, **args)
        with gputrace.span(name, stream, **args):
            for _ in range(chosen.randrange(3) if depth < 4 else 0):
                nest(depth + 1)

    for k in range(ROUNDS):
        nest(0)
        gputrace.instant("instant", n=n)
        with lock:
            said[False, "instant", (("n", n),)] += 1
            mine = windows.pop(chosen.randrange(len(windows))) if windows and chosen.random() < 0.7 else None
        if mine is not None:
            mine.close()  # whoever opened it
        stream = chosen.choice(streams)
        note(f"window {n} {k}", stream)
        window = gputrace.window(f"window {n} {k}", stream)
        with lock:
            windows.append(window)


def check(tmp_path: Path, suffix: str) -> None:
    said: Said = Counter()
    windows: list[Any] = []
    lock = threading.Lock()
    before = sys.getswitchinterval()
    with recording(tmp_path, suffix=suffix) as run:
        streams = [None, run.stream("a"), run.stream("b"), run.stream("c")]
        threads = [threading.Thread(target=work, args=(run, streams, n, said, windows, lock)) for n in range(THREADS)]
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        for window in windows:
            window.close()
        windows.clear()
        del window
    on_gpu = {id(s) for s in run.device}
    found = Counter(
        (id(s) in on_gpu, s.name, tuple(sorted((k, v) for k, v in s.args.items() if k != "placement")))
        for s in run.slices
    )
    assert found == said
    report = run.report
    assert all(s.dur >= 0 for s in run.slices)
    assert report["dropped"] == report["unfinished"] == report["failed"] == report["out_of_order"] == 0
    assert report["told"] == []


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@in_twin("pure")
def test_pure(tmp_path: Path, suffix: str) -> None:
    check(tmp_path, suffix)


@pytest.mark.slow
@pytest.mark.skipif("compiled" not in TWINS, reason="there is one twin here")
@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@in_twin("compiled")
def test_compiled(tmp_path: Path, suffix: str) -> None:
    check(tmp_path, suffix)
