"""What a forked child inherits of its parent's tracing: nothing held, nothing kept alive."""

from __future__ import annotations

from pathlib import Path

from tests.test_fork import load, run


def test_fork_with_many_threads_and_spans_open(tmp_path: Path) -> None:
    """Other threads hold spans, locks and events of ours at the moment of the fork. The child has only itself."""
    output = tmp_path / "t.pftrace"
    program = """
warnings.simplefilter("ignore")
gpu = default_gpu()
streams = [gpu.stream() for _ in range(4)]
stop = False

def work(stream):
    while not stop:
        with gputrace.span("thread", stream):
            stream.launch(10)
            with gputrace.span("inner"):
                gputrace.counter("c", 1)
        time.sleep(0.0002)

threads = [threading.Thread(target=work, args=(s,)) for s in streams]
with gputrace.trace(sys.argv[1], device="simulated") as trace:
    for t in threads:
        t.start()
    for n in range(25):
        with gputrace.span("main", streams[0]):
            pid = os.fork()
            if not pid:
                with gputrace.span("child", streams[1]):
                    streams[1].launch(10)
                    streams[0].launch(10)
                gputrace.instant("child")
                gc.collect()
                os._exit(3)
            code = wait(pid)
        if code != 3:
            print(n, code)
            break
    stop = True
    for t in threads:
        t.join()
print("well", trace.summary.unfinished, trace.summary.told)
"""
    assert run(program, output) == "well 0 []\n"
    assert all(s.dur >= 0 for s in load(output))
