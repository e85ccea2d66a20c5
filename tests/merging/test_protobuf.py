"""Perfetto traces merged: every slice where it was, whoever's ids were the same."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import pytest
from gputrace.exporters.perfetto import Perfetto

from gputrace.merging.merge import Options, merge
from gputrace.reading.fields import encode_bytes, encode_integer
from gputrace.reading.packets import frame
from tests.merging.making import Drawn, Host, program, recording_id, write_trace

HOST = Host("node0")
#: An hour older, and its wall clock a quarter of a second off.
OTHER = Host("node1", boottime_ns=31_000_000_456 + 3_600 * 10**9, wall_ns=Host("").wall_ns + 250_000_000)


def merged(tmp_path: Path, *paths: Path, output: str = "all.pftrace", options: Options | None = None) -> Drawn:
    outcome = merge(tuple(map(str, paths)), str(tmp_path / output), options)
    assert outcome.problems == []
    assert outcome.merged == list(map(str, paths))
    return Drawn(tmp_path / output)


def test_one_trace_stays_as_it_is(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program())
    assert merged(tmp_path, one).rows() == Drawn(one).rows()


@pytest.mark.parametrize("first", [0, 1, 300, 5_000, 500_000])  # ids of one to five bytes
def test_recordings_of_one_host_with_the_same_sequence_ids(tmp_path: Path, first: int) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program(first, 10), program(first + 1, 11))
    two = write_trace(tmp_path / "b.pftrace", HOST, program(first, 20), program(first + 1, 21), number=1)
    drawn = merged(tmp_path, one, two)
    assert drawn.rows() == sorted(Drawn(one).rows() + Drawn(two).rows())
    assert drawn.counters == {**Drawn(one).counters, **Drawn(two).counters}
    assert set(drawn.processes()) == {10, 11, 20, 21}


def test_more_sequences_than_ids_of_their_width(tmp_path: Path) -> None:
    def many(pid: int) -> object:
        script = program(0, pid)
        for n in range(100):
            script.add(
                script.thread(f"thread {n}"), (n, 5, "busy", None, 0, n + 50), (n + 90, 5, "busy", None, 0, n + 99)
            )
        return script

    paths = [write_trace(tmp_path / f"{n}.pftrace", HOST, many(1000 * n + 1000), number=n) for n in range(3)]
    assert merged(tmp_path, *paths).rows() == sorted(row for path in paths for row in Drawn(path).rows())


def test_ranks_with_numbers_of_their_own_are_copied_byte_by_byte(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program(0, 10))
    two = write_trace(tmp_path / "b.pftrace", HOST, program(64, 20), number=1)
    assert merged(tmp_path, one, two).rows() == sorted(Drawn(one).rows() + Drawn(two).rows())
    whole = (tmp_path / "all.pftrace").read_bytes()
    for path in (one, two):
        shard = path.read_bytes()
        assert shard[shard.index(b"train.py") :] in whole


def test_hosts_are_moved_by_their_wall_clocks_and_keep_their_pids_apart(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program(0, 4242))
    two = write_trace(tmp_path / "b.pftrace", OTHER, program(0, 4242), number=1)
    drawn = merged(tmp_path, one, two)
    moved_ns = (OTHER.wall_ns - OTHER.boottime_ns) - (HOST.wall_ns - HOST.boottime_ns)
    ours, theirs = ([row for row in drawn.rows() if (row[0][0] == "train.py 4242") == mine] for mine in (True, False))
    assert ours == Drawn(one).rows()
    assert [row[1:6] for row in theirs] == [row[1:6] for row in Drawn(two).rows(moved_ns)]
    pid = (1 << 22) + 4242
    assert drawn.processes() == {4242: "train.py", pid: "train.py (pid 4242 on node1)"}
    assert {row[0][0] for row in theirs} == {f"train.py (pid 4242 on node1) {pid}"}
    assert (f"train.py (pid 4242 on node1) {pid}", f"MainThread (tid 4242) {pid}") in {row[0] for row in theirs}


def test_a_rank_says_its_host_and_pid_already(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program(0, 42, name="rank 0 · node0 · 42"))
    two = write_trace(tmp_path / "b.pftrace", OTHER, program(64, 42, name="rank 1 · node1 · 42"), number=1)
    names = set(merged(tmp_path, one, two).processes().values())
    assert names == {"rank 0 · node0 · 42", "rank 1 · node1 · 42"}


def test_containers_of_one_host_share_its_clock_but_not_its_pids(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program(0, 7))
    two = write_trace(tmp_path / "b.pftrace", HOST, program(0, 7), number=1, pid_namespace="pid:[2]")
    drawn = merged(tmp_path, one, two)
    assert set(drawn.processes()) == {7, (1 << 22) + 7}
    assert {s.ts for s in drawn.slices} == {s.ts for s in Drawn(one).slices}


def test_gzipped_ones_and_a_gzipped_output(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.pftrace.gz", HOST, program(0, 10))
    two = write_trace(tmp_path / "b.pftrace", HOST, program(0, 20), number=1)
    drawn = merged(tmp_path, one, two, output="all.pftrace.gz")
    assert drawn.rows() == sorted(Drawn(one).rows() + Drawn(two).rows())


def test_what_a_killed_process_left_for_salvage_moves_too(tmp_path: Path) -> None:
    """Times of BOOTTIME within a sequence that counted steps before: `ResumedSequence`."""
    from gputrace.exporters.sequence import ResumedSequence

    from gputrace.model import Recording
    from tests.exporters.recordings import BASE

    script = program(0, 4242)
    recording = Recording(recording_id(1), BASE, OTHER.boottime_ns)
    track = script.tracks[0]
    uuid = Perfetto(io.BytesIO(), recording, script.process)._uuid(track.id)  # type: ignore[attr-defined]
    tail = ResumedSequence(track.id, uuid, 0, OTHER.boottime_ns).encode(
        [(BASE + 900_000, 5, "last", None, 0, BASE + 900_500)]
    )
    one = write_trace(tmp_path / "a.pftrace", HOST, program(0, 1))
    two = write_trace(tmp_path / "b.pftrace", OTHER, script, number=1)
    data = two.read_bytes()
    end = data.index(b"gputrace.end") - 12
    batch, _, _ = frame(data)
    last = int(batch.starts[-1])
    assert abs(last - end) < 8
    two.write_bytes(data[:last] + tail + data[last:])
    moved_ns = (OTHER.wall_ns - OTHER.boottime_ns) - (HOST.wall_ns - HOST.boottime_ns)
    [before] = Drawn(two).named("last")
    [after] = merged(tmp_path, one, two).named("last")
    assert (after.ts, after.dur) == (before.ts + moved_ns, 500)


def test_packets_packed_by_another_tool(tmp_path: Path) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program(0, 10))
    two = write_trace(tmp_path / "b.pftrace", HOST, program(0, 20), number=1)
    before = Drawn(two).rows()
    body = zlib.compress(two.read_bytes())
    two.write_bytes(encode_bytes(1, encode_bytes(50, body) + encode_integer(10, 9)))
    drawn = merged(tmp_path, one, two)
    assert drawn.rows() == sorted(Drawn(one).rows() + before)
