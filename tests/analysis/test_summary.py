"""What a summary says of traces whose every figure is known beforehand: unfinished, of a part, of ranks, of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import gputrace
from gputrace.analysis.statistics import covered_ns
from gputrace.analysis.summary import Options, Summarizer, Summary
from gputrace.model import BEGIN, END, SLICE
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace

BOTH = pytest.mark.parametrize("suffix", [".pftrace", ".json"])


def summed(*paths: Path, **options: object) -> Summary:
    summarizer = Summarizer(Options(**options))  # type: ignore[arg-type]
    for path in paths:
        summarizer.add(gputrace.read(path))
    return summarizer.summary()


def rank(number: int, slower: float = 1.0, name: str = "") -> Script:
    """Ten steps of a rank: "forward" on the host, launching a window of 1,000 ns; every second step waits."""
    script = Script(number, 100 + number, name or f"rank {number} · node0 · {100 + number}")
    thread, stream = script.thread(), script.stream()
    for k in range(10):
        at, flow, work = k * 10_000, k + 1, round(1_000 * slower)
        script.add(
            thread,
            (at, BEGIN, "step", {"number": k}),
            (at + 100, SLICE, "forward", None, flow, at + 100 + work),
            (at + 5_000, SLICE, "cudaStreamSynchronize" if k % 2 else "idle", None, 0, at + 6_000),
            (at + 9_000, END),
        )
        script.add(stream, (at + 500, SLICE, "forward", None, flow, at + 500 + work))
    return script


@BOTH
def test_an_unfinished_slice_is_in_no_figure(tmp_path: Path, suffix: str) -> None:
    script = rank(0)
    thread, _, stream = script.tracks
    script.add(stream, (200_000, BEGIN, "hangs"))
    script.add(thread, (200_000, BEGIN, "waits for it"), (210_000, SLICE, "done", None, 0, 220_000))
    summary = summed(write_trace(tmp_path / f"t{suffix}", Host("node0"), script))
    by_name = {(row.name, row.side): row for row in summary.spans}
    for key in (("hangs", "gpu"), ("waits for it", "host")):
        row = by_name[key]
        assert (row.count, row.unfinished, row.total_ns, row.self_ns) == (0, 1, 0, 0)
    assert by_name["done", "host"].count == 1
    device, one_stream = summary.devices
    assert (device.windows, device.unfinished, device.busy_ns, device.idle_ns) == (10, 1, 10_000, 81_000)
    assert (one_stream.stream, one_stream.unfinished) == ("stream 7", 1)
    assert summary.traces[0].unfinished == 2


@BOTH
def test_steps_by_their_arrows(tmp_path: Path, suffix: str) -> None:
    summary = summed(write_trace(tmp_path / f"t{suffix}", Host("node0"), rank(0, 2.0)), by_step=True)
    figures = [(s.number, s.duration_ns, s.gpu_busy_ns, s.windows, s.wait_ns) for s in summary.steps]
    assert figures == [(k, 9_000, 2_000, 1, 1_000 * (k % 2)) for k in range(10)]
    [delay] = summary.delays
    assert (delay.count, delay.min_ns, delay.max_ns, delay.negative) == (10, 400, 400, 0)
    assert [(w.count, w.total_ns) for w in summary.waits] == [(5, 5_000)]


@BOTH
def test_only_what_waits_for_a_device_is_a_wait_and_once(tmp_path: Path, suffix: str) -> None:
    """As `torch.ops` shows `item` of a tensor on the CPU, and of one on the GPU; and as torch.profiler shows that."""
    script = Script(0)
    thread = script.thread()
    for at, target, waits in ((0, "cpu", False), (100, "cuda:0", True), (200, "cuda:0", None)):
        stated = {} if waits is None else {"from": target, "to": "cpu", "waits": waits}
        script.add(
            thread,
            (at, BEGIN, "aten::item"),
            (at + 10, BEGIN, "aten::_local_scalar_dense", stated),
            (at + 20, SLICE, "cudaStreamSynchronize" if waits is None else "aten::to", None, 0, at + 30),
            (at + 60, END),
            (at + 80, END),
        )
    script.add(thread, (300, BEGIN, "cuda.synchronize"), (310, SLICE, "Stream.synchronize", None, 0, 320), (350, END))
    waits = {"waits": True}
    script.add(thread, (400, SLICE, "aten::copy_", waits, 0, 405), (410, SLICE, "mine", waits, 0, 420))
    path = write_trace(tmp_path / f"t{suffix}", Host("node0"), script)
    assert [(w.count, w.total_ns) for w in summed(path).waits] == [(4, 50 + 10 + 50 + 5)]
    assert [(w.count, w.total_ns) for w in summed(path, waits=["aten::i*"]).waits] == [(4, 3 * 80 + 5)]


def test_steps_go_by_other_names_too(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.pftrace", Host("node0"), rank(0))
    assert [s.name for s in summed(path, by_step=True, steps=["for*"]).steps] == ["forward"] * 10
    assert summed(path, by_step=True, steps=["epoch"]).steps == []
    assert [w.count for w in summed(path, waits=["idle"]).waits] == [5]


@BOTH
def test_a_part_of_it(tmp_path: Path, suffix: str) -> None:
    path = write_trace(tmp_path / f"t{suffix}", Host("node0"), rank(0))
    named = summed(path, names=["forw*"])
    assert {(row.name, row.side, row.count) for row in named.spans} == {("forward", "host", 10), ("forward", "gpu", 10)}
    on_track = summed(path, tracks=["*stream 7"])
    assert [(row.name, row.side) for row in on_track.spans] == [("forward", "gpu")]
    assert on_track.gaps[0].host[0].name == "step"  # which was not asked for, and is told
    for part in (named, on_track):  # a GPU is as busy, and a launch as long before its window, as in the whole trace
        everything = summed(path)
        assert (part.devices, part.gaps, part.delays) == (everything.devices, everything.gaps, everything.delays)
    # The second and third step, and 300 ns of the fourth one's window: 30_500 to 31_500, counted from 0.
    part = summed(path, start_ns=10_000, end_ns=30_800)
    assert {row.name: row.count for row in part.spans if row.side == "gpu"} == {"forward": 3}
    device = part.devices[0]
    assert (device.busy_ns, device.idle_ns) == (2_300, 20_800 - 2_300)


def crowd() -> Script:
    """A host that launches ahead on two streams, and one step of 10,000 ns after another, "load" before "train"."""
    script = Script(0)
    thread, first, second = script.thread(), script.stream("stream 7"), script.stream("stream 9")
    for k in range(4):
        at, flow = k * 10_000, 2 * k + 1
        script.add(
            thread,
            (at, BEGIN, "step", {"number": k}),
            (at + 100, SLICE, "load", None, flow, at + 200),
            (at + 300, SLICE, "train", None, flow + 1, at + 400),
            (at + 5_000, SLICE, "cudaStreamSynchronize", None, 0, at + 7_000),
            (at + 9_000, END),
        )
        script.add(second, (at + 1_000, SLICE, "load", None, flow, at + 3_000))
        script.add(
            first, (at + 3_000, BEGIN, "train", None, flow + 1), (at + 4_000, SLICE, "loss", None, 0, at + 4_500)
        )
        script.add(first, (at + 7_000, END))
    return script


@BOTH
@pytest.mark.parametrize("part", [{"names": ["loss"]}, {"names": ["train"], "tracks": ["*"]}, {"names": ["step"]}])
@pytest.mark.parametrize("time", [{}, {"start_ns": 12_000, "end_ns": 34_000}])
def test_names_choose_spans_and_change_no_figure(
    tmp_path: Path, suffix: str, part: dict[str, object], time: dict[str, int]
) -> None:
    path = write_trace(tmp_path / f"t{suffix}", Host("node0"), crowd())
    everything, chosen = summed(path, by_step=True, **time), summed(path, by_step=True, **part, **time)
    names = {row.name for row in chosen.spans}
    assert names == set(part["names"])  # type: ignore[call-overload]
    # Self time and share are of all that lies in a span and on its row.
    assert chosen.spans == [row for row in everything.spans if row.name in names]
    for kind in ("devices", "gaps", "delays", "waits", "steps"):
        assert getattr(chosen, kind) == getattr(everything, kind) != [], kind
    assert all(gap.launch_ns is not None and gap.launch_ns > 0 for gap in chosen.gaps)


@BOTH
def test_tracks_choose_rows_and_change_no_figure(tmp_path: Path, suffix: str) -> None:
    path = write_trace(tmp_path / f"t{suffix}", Host("node0"), crowd())
    everything, chosen = summed(path, by_step=True), summed(path, by_step=True, tracks=["*stream 9"])
    assert chosen.devices == [use for use in everything.devices if use.stream in ("", "stream 9")]
    assert [use.stream for use in chosen.devices] == ["", "stream 9"]
    assert chosen.gaps == everything.gaps
    assert chosen.delays == [delay for delay in everything.delays if delay.stream == "stream 9"]
    assert (chosen.waits, chosen.steps) == ([], [])
    on_host = summed(path, by_step=True, tracks=[row.track for row in everything.spans if row.side == "host"])
    assert (on_host.devices, on_host.gaps, on_host.delays) == ([], [], [])
    assert (on_host.waits, on_host.steps) == (everything.waits, everything.steps)


@BOTH
def test_what_crosses_the_edge_of_a_time_is_told_whole(tmp_path: Path, suffix: str) -> None:
    """A window's launch may lie before it, a step's windows after."""
    path = write_trace(tmp_path / f"t{suffix}", Host("node0"), crowd())
    part = summed(path, by_step=True, start_ns=10_500, end_ns=12_000)  # after a launch, before "train" begins
    assert [(d.stream, d.count, d.min_ns) for d in part.delays] == [("stream 9", 1, 900)]
    assert part.steps == summed(path, by_step=True).steps[1:2]
    [device] = [use for use in part.devices if not use.stream]
    assert (device.busy_ns, device.idle_ns) == (1_000, 500)


def test_the_late_rank(tmp_path: Path) -> None:
    paths = [
        write_trace(tmp_path / f"{k}.pftrace", Host("node0"), rank(k, slower), number=k)
        for k, slower in enumerate((1.0, 1.5, 1.1))
    ]
    together = summed(*paths)
    spread = {(each.side, each.name): each for each in together.ranks}
    for side in ("host", "gpu"):
        each = spread[side, "forward"]
        assert each.total_ns == {0: 10_000, 1: 15_000, 2: 11_000}
        assert (each.late, each.longest, each.shortest, each.lost_ns, each.spread) == (1, 1, 0, 5_000, 0.5)
        assert each.median_ns == {0: 1_000, 1: 1_500, 2: 1_100}
    assert spread["host", "idle"].lost_ns == 0
    assert [each.name for each in together.ranks[:2]] == ["forward", "forward"]  # the most time apart first
    assert len(together.traces) == 3
    assert summed(paths[0]).ranks == []


@pytest.mark.parametrize(
    "name", ["all_reduce", "barrier", "nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_to_all_single"]
)
def test_what_all_ranks_leave_together_is_long_where_one_waits_for_the_late_one(tmp_path: Path, name: str) -> None:
    """Rank 1 computes for 900 ns a step, the others for 400: so they wait for it, until all leave at 1,000."""
    paths = []
    for k in range(3):
        script = Script(k, 100 + k, f"rank {k} · node0 · {100 + k}")
        thread, busy_ns = script.thread(), 900 if k == 1 else 400
        for at in range(0, 20_000, 2_000):
            script.add(thread, (at, SLICE, "forward", None, 0, at + busy_ns))
            script.add(thread, (at + busy_ns, SLICE, name, None, 0, at + 1_000))
            script.add(thread, (at + 1_000, SLICE, "broadcast", None, 0, at + 1_000 + k))
        paths.append(write_trace(tmp_path / f"{k}.pftrace", Host("node0"), script, number=k))
    spread = {each.name: each for each in summed(*paths).ranks}
    for each, longest, shortest in ((spread["forward"], 1, 0), (spread[name], 0, 1)):
        assert (each.late, each.longest, each.shortest, each.lost_ns) == (1, longest, shortest, 5_000)
    assert spread["broadcast"].late == 2


def test_runs_of_one_program_are_summed_up_together(tmp_path: Path) -> None:
    paths = [
        write_trace(tmp_path / f"{k}.pftrace", Host("node0"), rank(0, k, name="train.py"), number=k) for k in (1, 3)
    ]
    [row] = [row for row in summed(*paths).spans if (row.name, row.side) == ("forward", "host")]
    assert (row.count, row.min_ns, row.max_ns, row.median_ns) == (20, 1_000, 3_000, 2_000)


def test_rows_of_one_name_are_told_apart(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.pftrace", Host("node0"), *(rank(k, name="python") for k in range(2)))
    assert {row.track for row in summed(path).spans if row.side == "host"} == {
        "python/MainThread 100",
        "python/MainThread 101",
    }


@BOTH
def test_a_trace_of_nothing(tmp_path: Path, suffix: str) -> None:
    summary = summed(write_trace(tmp_path / f"t{suffix}", Host("node0"), Script()), by_step=True)
    assert (len(summary.traces), summary.spans, summary.devices, summary.gaps, summary.steps) == (1, [], [], [], [])


def test_time_covered_by_nothing() -> None:
    none = gputrace.table.columns.as_ints([])
    assert covered_ns(none, none) == 0


def test_no_work_is_told_as_work(tmp_path: Path) -> None:
    """PyTorch draws ranges of the host among a stream's kernels."""
    process = {"ph": "M", "pid": 0, "name": "process_labels", "args": {"labels": "GPU 0"}}
    base = {"ph": "X", "pid": 0, "tid": 7}
    (tmp_path / "t.json").write_bytes(
        gputrace.table.args.as_json(
            {
                "traceEvents": [
                    process,
                    {**base, "cat": "gpu_user_annotation", "name": "step", "ts": 0, "dur": 100},
                    {**base, "cat": "kernel", "name": "gemm", "ts": 10, "dur": 20},
                    {**base, "cat": "kernel", "name": "relu", "ts": 50, "dur": 5},
                ]
            }
        )
    )
    device = summed(tmp_path / "t.json").devices[0]
    assert (device.windows, device.busy_ns, device.idle_ns) == (2, 25_000, 20_000)
