"""What the compiled twin keeps: rings come back from threads that ended, and a child has nothing of its parent's."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import gputrace
from gputrace import tracer
from tests.hot.twin import SPAN_BYTES, host_threads, in_twin, room_for
from tests.recorded import recording
from tests.test_fork import run

PIECE_BYTES = 1 << 16


@in_twin("compiled")
def test_rings_of_threads_come_back_with_their_end(tmp_path: Path) -> None:
    """Each thread has a piece of its own; a thousand threads, a few at a time, need a few pieces."""
    from gputrace.hot import _hot

    def work() -> None:
        with gputrace.span("x"):
            pass

    with recording(tmp_path, "host") as finished:
        most = 0
        for _ in range(50):
            threads = [threading.Thread(target=work) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            deadline = time.monotonic() + 20
            while host_threads() and time.monotonic() < deadline:
                time.sleep(0.001)
            assert not host_threads()
            most = max(most, _hot.state()["ring_bytes"])
    assert len(finished.slices) == 1000
    assert most < 100 * PIECE_BYTES


@in_twin("compiled")
def test_long_pieces_serve_short_records_later(tmp_path: Path) -> None:
    """A burst of spans with long arguments must not keep the room from those that come after."""
    from gputrace.hot import _hot

    room, long = (4 << 20) // SPAN_BYTES, {f"k{n}": "x" * 4000 for n in range(40)}
    with room_for(room), recording(tmp_path, "host") as finished:
        current = tracer.current()
        assert current is not None
        for _ in range(4):
            for _ in range(8):  # half of the room
                with gputrace.span("long", **long):
                    pass
            current.write_now()
        with current._cycle_lock:  # nobody collects
            for _ in range(room * 3 // 4):
                with gputrace.span("short"):
                    pass
        assert _hot.state()["dropped_spans"] == 0
    assert len(finished.slices) == 32 + room * 3 // 4


@in_twin("compiled")
def test_a_forked_child_has_no_ring_of_its_parent_s(tmp_path: Path) -> None:
    program = """
from gputrace.hot import _hot
stream = default_gpu().stream()
with gputrace.trace(sys.argv[1], device="simulated") as trace:
    for _ in range(50):
        with gputrace.span("x", stream):
            pass
    with gputrace.span("open", stream):
        pid = os.fork()
        if not pid:
            state = _hot.state()
            kept = (*_hot.threads(), state["ring_bytes"], state["slices"])
            os._exit(0 if not any(kept) and not hot.queues() and not _hot.all_queues() else 1)
        print(wait(pid), trace.summary)
"""
    assert run(program, tmp_path / "t.pftrace") == "0 None\n"
