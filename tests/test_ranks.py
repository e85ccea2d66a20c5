"""Which rank a launcher says this is, and what becomes of an output's name."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

import gputrace
from gputrace import ranks
from gputrace.errors import UsageError
from gputrace.merging.merge import merge
from gputrace.ranks import Rank, expand, identity, with_rank
from tests.cli.test_record import said
from tests.engine import Engine
from tests.merging.making import Host, program, write_trace
from tests.record.running import GPUTRACE, ONE_SPAN, PYTHON, recording, run
from tests.recorded import EXPORTERS


@pytest.mark.parametrize(
    ("environment", "facts"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, {"rank": 3, "local_rank": 1, "world_size": 8}),
        (
            {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"},
            {"rank": 2, "local_rank": 0, "world_size": 4},
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            {"rank": 1, "local_rank": 1, "world_size": 2},
        ),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, {"rank": 5, "world_size": 6}),
        # torchrun within srun: what the program goes by.
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8"},
            {"rank": 6, "local_rank": 2, "world_size": 8},
        ),
    ],
)
def test_each_launcher(environment: dict[str, str], facts: dict[str, int]) -> None:
    found = identity(environment)
    assert found is not None
    assert found.facts() == facts


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": ""},
        {"RANK": "high"},
        {"RANK": "-1"},
        {"RANK": "٣"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "9" * 30},
    ],
)
def test_no_rank(environment: dict[str, str]) -> None:
    assert identity(environment) is None


def test_names() -> None:
    host, pid = ranks.hostname(), os.getpid()
    assert expand("a%r-%h-%p.json", Rank(7)) == f"a7-{host}-{pid}.json"
    assert expand("a%r.json") == "a0.json"
    assert expand("100%%-%%%r.json", Rank(7)) == "100%-%7.json"
    assert expand("%%r", Rank(7)) == "%r"
    assert with_rank("out.d/trace.pftrace.gz", Rank(3)) == "out.d/trace.rank3.pftrace.gz"
    assert with_rank("a.b.json", Rank(0)) == "a.b.rank0.json"


@pytest.mark.parametrize(("output", "what"), [("a%x.json", "%x"), ("%r-%d.json", "%d"), ("a%.json", "%."), ("a%", "%")])
def test_another_letter_is_refused(output: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"^{output}: {what} stands for nothing: %r is the rank, %h the host, %p the "):
        expand(output, Rank(7))


def test_shard_numbers_of_ranks_lie_apart_and_below_the_limit() -> None:
    assert [Rank(n).first_number for n in (0, 1, 8_191)] == [0, 64, 8_191 * 64]
    assert Rank(8_192).first_number == 0


def test_ranks_that_were_given_one_name_write_a_file_each(tmp_path: Path) -> None:
    for rank in ("0", "1"):
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "SECRET_OF_MINE": "hunter2"}
        done = run(recording(PYTHON, "-c", ONE_SPAN), tmp_path, env=environment)
        assert done.returncode == 0
        assert said(done.stderr)[0].startswith(f"rank {rank} writes trace.rank{rank}.pftrace, as every rank was given")
    assert sorted(os.listdir(tmp_path)) == ["trace.rank0.pftrace", "trace.rank1.pftrace"]
    [process] = Engine(tmp_path / "trace.rank1.pftrace").query("select name, pid from process where pid != 0")
    assert process["name"] == f"rank 1 · {ranks.hostname()} · {process['pid']}"
    facts = Engine(tmp_path / "trace.rank1.pftrace").query("select name, int_value from metadata")
    assert {"name": "cr-rank", "int_value": 1} in facts
    data = (tmp_path / "trace.rank1.pftrace").read_bytes()
    described = [packet.track_descriptor.process for packet in pb.Trace.FromString(data).packet]
    assert [each.legacy_sort_index for each in described if each.pid] == [1], "for viewers that sort processes by it"
    assert b"SECRET_OF_MINE" not in data
    assert b"hunter2" not in data


def test_what_a_rank_is_called() -> None:
    host = ranks.hostname()
    assert ranks.process_name(Rank(3), 42) == f"rank 3 · {host} · 42"
    assert ranks.process_name(Rank(3, world_size=10), 42) == f"rank 3 · {host} · 42"
    assert ranks.process_name(Rank(3, world_size=11), 42) == f"rank 03 · {host} · 42"
    assert ranks.process_name(Rank(1000, world_size=1001), 42) == f"rank 1000 · {host} · 42"
    assert ranks.process_name(Rank(12, world_size=4), 42) == f"rank 12 · {host} · 42", "nobody checks launchers"


#: How Perfetto's UI (v52) sorts processes, but for what heap and CPU profilers count and names that Chrome's have.
AS_THE_UI = """
include perfetto module viz.summary.processes;
select process.name as name from _process_available_info_summary join process using (upid)
order by sum_running_dur desc, thread_slice_count + process_slice_count desc, name asc, upid asc
"""


@pytest.mark.parametrize("suffix", EXPORTERS)
def test_ranks_that_did_as_much_are_sorted_by_number_in_the_ui(tmp_path: Path, suffix: str) -> None:
    names = [ranks.process_name(Rank(n, world_size=12), 100 + n) for n in range(12)]
    shuffled = random.Random(3).sample(range(12), 12)
    files = [
        str(write_trace(tmp_path / f"{n}{suffix}", Host("h"), program(n, 100 + n, name=names[n]), number=n))
        for n in shuffled
    ]
    merge(tuple(files), str(tmp_path / f"all{suffix}"))
    drawn = [row["name"] for row in Engine(tmp_path / f"all{suffix}").query(AS_THE_UI)]
    assert [name for name in drawn if name in names] == names
    tracks = gputrace.read(tmp_path / f"all{suffix}").tracks
    assert {track.rank for track in tracks} - {-1} == {*range(12)}, "read back as the numbers that they are"


def test_a_name_of_their_own_is_kept(tmp_path: Path) -> None:
    environment = {**os.environ, "RANK": "4", "WORLD_SIZE": "8"}
    done = run(
        [*GPUTRACE, "record", "-o", "r%r.json", "--device", "host", PYTHON, "-c", ONE_SPAN], tmp_path, env=environment
    )
    assert os.listdir(tmp_path) == ["r4.json"]
    assert len(said(done.stderr)) == 1
    assert b'"sort_index":4' in (tmp_path / "r4.json").read_bytes()


def test_a_program_that_records_itself(tmp_path: Path) -> None:
    program = "import gputrace\nwith gputrace.trace('own.pftrace', device='host') as t, gputrace.span('x'): pass"
    run([PYTHON, "-c", program], tmp_path, env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"})
    assert os.listdir(tmp_path) == ["own.rank1.pftrace"]
