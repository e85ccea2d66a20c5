"""One stream, several threads: they record in one order and hand over in another; the device knows which is true."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import gputrace
from tests.engine import Slice
from tests.recorded import Run, recording


def edges_off(drawn: Slice, begin_ns: int, end_ns: int) -> int:
    return max(abs(drawn.ts - begin_ns), abs(drawn.ts + drawn.dur - end_ns))


def test_a_record_that_is_handed_over_late(tmp_path: Path) -> None:
    """A driver call drops the GIL: a thread may hold a stamp for long before it can say so."""
    with recording(tmp_path) as run:
        stream, gpu = run.stream(), run.gpu
        stamped, go_on = threading.Event(), threading.Event()
        plain = gpu.record_raw

        def record(event: Any, native: Any) -> Any:
            result = plain(event, native)
            if threading.current_thread().name == "late" and not stamped.is_set():
                stamped.set()
                go_on.wait()
            return result

        gpu.record_raw = record

        def late() -> None:
            with gputrace.span("late", stream=stream):
                pass

        thread = threading.Thread(target=late, name="late")
        with gputrace.span("early", stream=stream):
            thread.start()
            stamped.wait()
            stream.launch(3_000_000)
        stream.synchronize()
        go_on.set()
        thread.join()
        stamps = {"early": gpu.mine(), "late": gpu.stamps[thread.ident or 0]}
    for name, (begin, end) in stamps.items():
        (drawn,) = (s for s in run.device if s.name == name)
        assert edges_off(drawn, begin.host_ns, end.host_ns) <= run.report["worst_uncertainty_ns"], name


def test_threads_that_race_for_a_stream(tmp_path: Path) -> None:
    """Every thread's windows nest among themselves, and in nothing else."""
    truth: dict[str, tuple[int, int]] = {}

    def work(run: Run, stream: Any, n: int) -> None:
        for k in range(25):
            outer, inner = f"t{n}.{k}", f"t{n}.{k} in"
            with gputrace.span(outer, stream=stream):
                with gputrace.span(inner, stream=stream):
                    stream.launch(200)
                time.sleep(0)
            begin, inner_begin, inner_end, end = (stamp.host_ns for stamp in run.gpu.mine()[-4:])
            truth[outer], truth[inner] = (begin, end), (inner_begin, inner_end)

    with recording(tmp_path) as run:
        stream = run.stream("shared")
        threads = [threading.Thread(target=work, args=(run, stream, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(run.device) == len({s.name for s in run.device}) == len(truth) == 300
    assert run.report["out_of_order"] == 0
    for s in run.device:
        assert edges_off(s, *truth[s.name]) <= run.report["worst_uncertainty_ns"], s
        assert run.parent_name(s) == (s.name[:-3] if s.name.endswith(" in") else None)
        assert s.track[-1] == "shared"


def test_a_thread_that_ends_leaves_its_windows_open(tmp_path: Path) -> None:
    """Another thread closes a window long after the one that opened it is gone."""
    from gputrace import hot

    opened: list[Any] = []
    with recording(tmp_path) as run:
        stream = run.stream()
        thread = threading.Thread(target=lambda: opened.extend(gputrace.window(n, stream=stream) for n in ("a", "b")))
        thread.start()
        thread.join()
        deadline = time.monotonic() + 5
        while not hot.idle() and time.monotonic() < deadline:
            time.sleep(0.001)
        opened[0].close()
        before = time.monotonic_ns()
        opened[1].close()
        stamps = [stamp.host_ns for stamp in run.gpu.mine()]
    assert run.report["unfinished"] == 0
    assert all(s.dur >= 0 for s in run.slices)
    (host,) = (s for s in run.host if s.name == "b")
    assert host.ts + host.dur >= before
    for name, end_ns in zip("ab", stamps, strict=True):
        (drawn,) = (s for s in run.device if s.name == name)
        assert abs(drawn.ts + drawn.dur - end_ns) <= run.report["worst_uncertainty_ns"]
