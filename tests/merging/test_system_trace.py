"""Perfetto traces of other tools: what ties them to ours, what must not be touched, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.merging.merge import Options, merge
from gputrace.merging.plan import Clock
from tests.exporters.recordings import BASE
from tests.merging.making import Drawn, Host, program, write_trace
from tests.merging.test_protobuf import HOST, OTHER

START = BASE + HOST.boottime_ns


def snapshot(trace: Any, host: Host, after_ns: int = 0) -> None:
    packet = trace.packet.add(trusted_packet_sequence_id=1, trusted_uid=1000)
    for clock, ns in [(6, BASE + host.boottime_ns), (3, BASE), (1, BASE + host.wall_ns), (5, BASE - 77)]:
        packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=ns + after_ns)


def system(path: Path, host: Host) -> Path:
    """What tracebox writes: scheduling in ftrace bundles, and packets' ids behind all else."""
    trace = pb.Trace()
    snapshot(trace, host)
    packet = trace.packet.add()
    bundle = packet.ftrace_events
    bundle.cpu = 0
    packet.trusted_uid, packet.trusted_packet_sequence_id = 9999, 3
    for n in range(10):
        event = bundle.event.add(timestamp=BASE + host.boottime_ns + n * 10_000, pid=4242 if n % 2 else 7)
        switch = event.sched_switch
        switch.prev_comm, switch.prev_pid, switch.prev_state = "python" if n % 2 else "other", 4242 if n % 2 else 7, 0
        switch.next_comm, switch.next_pid = "other" if n % 2 else "python", 7 if n % 2 else 4242
    snapshot(trace, host, 10**9)
    path.write_bytes(trace.SerializeToString())
    return path


def sdk(path: Path, host: Host, clock: int = 6) -> Path:
    """What a program with Perfetto's own SDK writes: track events whose ids come last."""
    trace = pb.Trace()
    snapshot(trace, host)
    packet = trace.packet.add()
    packet.track_descriptor.uuid, packet.track_descriptor.thread.pid, packet.track_descriptor.thread.tid = 5, 4242, 4243
    packet.track_descriptor.thread.thread_name = "sdk"
    packet.trusted_packet_sequence_id = 2
    offset = {6: host.boottime_ns, 3: 0}[clock]
    for n in range(4):
        packet = trace.packet.add(timestamp=BASE + offset + 1_000 + n * 500)
        if clock != 6:
            packet.timestamp_clock_id = clock
        packet.track_event.type = pb.TrackEvent.TYPE_SLICE_END if n % 2 else pb.TrackEvent.TYPE_SLICE_BEGIN
        packet.track_event.track_uuid = 5
        if n % 2 == 0:
            packet.track_event.name = f"sdk {n}"
            packet.track_event.categories.append("mine")
        packet.trusted_packet_sequence_id = 2
    path.write_bytes(trace.SerializeToString())
    return path


def switches(path: Path) -> list[Any]:
    return Drawn(path).engine.query("select ts, dur, cpu from sched order by ts")


def test_scheduling_beside_a_recording_of_the_same_machine(tmp_path: Path) -> None:
    ours = write_trace(tmp_path / "a.pftrace", HOST, program())
    theirs = system(tmp_path / "s.pftrace", HOST)
    outcome = merge((str(ours), str(theirs)), str(tmp_path / "all.pftrace"))
    assert (outcome.problems, outcome.hosts) == ([], 1)
    assert switches(tmp_path / "all.pftrace") == switches(theirs) != []
    drawn = Drawn(tmp_path / "all.pftrace")
    assert drawn.rows() == Drawn(ours).rows()
    # The thread that ran is the thread that the spans are of.
    [thread] = drawn.engine.query("select count(*) as n from thread where tid = 4242")
    assert thread["n"] == 1


def test_of_another_machine_it_is_the_timeline_and_ours_moves(tmp_path: Path) -> None:
    ours = write_trace(tmp_path / "a.pftrace", OTHER, program())
    theirs = system(tmp_path / "s.pftrace", HOST)
    outcome = merge((str(ours), str(theirs)), str(tmp_path / "all.pftrace"))
    assert (outcome.problems, outcome.hosts) == ([], 2)
    assert switches(tmp_path / "all.pftrace") == switches(theirs)
    moved_ns = (OTHER.wall_ns - OTHER.boottime_ns) - (HOST.wall_ns - HOST.boottime_ns)
    assert sorted(s.ts for s in Drawn(tmp_path / "all.pftrace").slices) == sorted(
        s.ts + moved_ns for s in Drawn(ours).slices
    )


def test_two_of_different_machines_cannot_both_stay(tmp_path: Path) -> None:
    one, two = system(tmp_path / "s.pftrace", HOST), system(tmp_path / "t.pftrace", OTHER)
    outcome = merge((str(one), str(two)), str(tmp_path / "all.pftrace"))
    assert outcome.merged == [str(one)]
    [problem] = outcome.problems
    assert problem.startswith(f"{two}: it would have to be moved by ")
    assert "it holds the system's own events (ftrace and the like)" in problem


def test_json_has_no_word_for_it(tmp_path: Path) -> None:
    theirs = system(tmp_path / "s.pftrace", HOST)
    outcome = merge((str(theirs),), str(tmp_path / "all.json"))
    assert outcome.problems == [
        f"{theirs}: JSON has no word for some of its packets (1 of ftrace_events): .pftrace keeps them"
    ]


def test_an_sdks_trace_of_another_machine_is_moved(tmp_path: Path) -> None:
    ours = write_trace(tmp_path / "a.pftrace", HOST, program())
    theirs = sdk(tmp_path / "s.pftrace", OTHER)
    for output in ("all.pftrace", "all.json"):
        assert merge((str(ours), str(theirs)), str(tmp_path / output)).problems == []
        drawn = Drawn(tmp_path / output)
        wall_ns = OTHER.wall_ns - HOST.wall_ns
        assert [(s.name, s.ts, s.dur) for s in drawn.slices if s.name and s.name.startswith("sdk")] == [
            ("sdk 0", START + wall_ns + 1_000, 500),
            ("sdk 2", START + wall_ns + 2_000, 500),
        ]
        pid = (1 << 22) + 4242
        assert drawn.named("sdk 0")[0].track[-1] == f"sdk (tid 4243) {(1 << 22) + 4243}"
        assert drawn.engine.query(f"select count(*) as n from process where pid = {pid}") == [{"n": 1}]


def test_times_of_another_clock_stay_where_they_can(tmp_path: Path) -> None:
    ours = write_trace(tmp_path / "a.pftrace", HOST, program())
    theirs = sdk(tmp_path / "s.pftrace", HOST, clock=3)
    assert merge((str(ours), str(theirs)), str(tmp_path / "all.pftrace")).problems == []
    assert [s.ts for s in Drawn(tmp_path / "all.pftrace").slices if s.name == "sdk 0"] == [START + 1_000]


def test_a_trace_without_any_clock_needs_a_word(tmp_path: Path) -> None:
    ours = write_trace(tmp_path / "a.pftrace", HOST, program())
    other = write_trace(tmp_path / "b.pftrace", OTHER, program(), number=1)
    trace = pb.Trace.FromString(sdk(tmp_path / "s.pftrace", OTHER).read_bytes())
    del trace.packet[0]
    theirs = tmp_path / "s.pftrace"
    theirs.write_bytes(trace.SerializeToString())
    arguments = tuple(map(str, (ours, other, theirs)))
    outcome = merge(arguments, str(tmp_path / "all.pftrace"))
    [problem] = outcome.problems
    assert problem.startswith(f"{theirs}: it does not state what host's BOOTTIME its times are of")
    assert problem.endswith("boottime@HOST, where HOST is node0 or node1")
    outcome = merge(arguments, str(tmp_path / "all.pftrace"), Options(clocks={str(theirs): Clock("boottime", "node9")}))
    assert outcome.problems == [f"{theirs}: --clock names node9, and no trace is of a host of that name"]
    options = Options(clocks={str(theirs): Clock("boottime", "node1")})
    assert merge(arguments, str(tmp_path / "all.pftrace"), options).problems == []
    wall_ns = OTHER.wall_ns - HOST.wall_ns
    assert [s.ts for s in Drawn(tmp_path / "all.pftrace").slices if s.name == "sdk 0"] == [START + wall_ns + 1_000]
