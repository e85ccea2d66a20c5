"""What the pure twin keeps of its own objects: pooled spans and threads' buffers go when nothing needs them."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import gputrace
from gputrace.hot import pure
from tests.hot.twin import in_twin
from tests.recorded import recording
from tests.test_fork import run


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@in_twin("pure")
def test_spans_of_a_finished_recording_are_not_made_anew_for_ever(tmp_path: Path) -> None:
    before = alive(pure.Span)
    with recording(tmp_path, leaked_events=None) as finished:
        kept = gputrace.span("kept", finished.stream())
        for _ in range(20):
            with gputrace.span("x", finished.stream()):
                pass
    del kept
    for _ in range(3):
        gc.collect()
    assert alive(pure.Span) <= before


@in_twin("pure")
def test_buffers_of_threads_go_with_them(tmp_path: Path) -> None:
    def work() -> None:
        with gputrace.span("x"):
            pass

    with recording(tmp_path, "host"):
        for _ in range(300):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        deadline = time.monotonic() + 20
        while pure.threads() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not pure.threads()
        # A pooled span holds the thread that it was last used on.
        assert alive(pure.ThreadBuffer) <= len(pure.host_pool()) + 10


@in_twin("pure")
def test_pools_of_the_parent_are_not_kept_alive_in_a_forked_child(tmp_path: Path) -> None:
    program = """
from gputrace.hot import pure
stream = default_gpu().stream()
with gputrace.trace(sys.argv[1], device="simulated"):
    for _ in range(50):
        with gputrace.span("x", stream):
            pass
    pid = os.fork()
    if not pid:
        counts = []
        for _ in range(4):
            gc.collect()
            counts.append(sum(type(each) is pure.Span for each in gc.get_objects()))
        os._exit(0 if counts[-1] == 0 else 1)
    print(wait(pid))
"""
    assert run(program, tmp_path / "t.pftrace") == "0\n"
