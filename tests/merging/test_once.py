"""What several inputs hold is drawn once, and the others are told by name: merged traces beside what they hold."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from gputrace.merging.merge import Outcome, merge
from tests.merging.making import Drawn, Host, program, write_trace

HOST = Host("node0")
KINETO = Path(__file__).parent / "kineto.json"
ALREADY = "is in all.pftrace already, so it is merged once"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        write_trace(Path(f"{name}.pftrace"), HOST, program(64 * number, 10 + number), number=number)


def merged(*paths: str, output: str = "all.pftrace") -> Outcome:
    return merge(paths, output)


def rows(*paths: str) -> list[object]:
    return sorted(row for path in paths for row in Drawn(Path(path)).rows())


@pytest.mark.parametrize("name", ["all.pftrace", "all.pftrace.gz", "all.json", "all.json.gz"])
def test_a_merged_trace_beside_all_it_was_made_of_yields(name: str) -> None:
    assert merged("a.pftrace", "b.pftrace", output=name).problems == []
    outcome = merged(name, "a.pftrace", "b.pftrace", "c.pftrace", output="again.pftrace")
    assert outcome.merged == ["a.pftrace", "b.pftrace", "c.pftrace"]
    assert outcome.problems == [f"{name}: all that it was merged of is here too, and is merged instead"]
    assert Drawn(Path("again.pftrace")).rows() == rows("a.pftrace", "b.pftrace", "c.pftrace")


@pytest.mark.parametrize("name", ["all.pftrace", "all.pftrace.gz", "all.json"])
def test_what_a_merged_trace_holds_is_not_taken_again(name: str) -> None:
    merged("a.pftrace", "b.pftrace", output=name)
    outcome = merged("b.pftrace", name, "c.pftrace", output="again.pftrace")
    assert outcome.merged == [name, "c.pftrace"]
    assert outcome.problems == [f"b.pftrace: it {ALREADY.replace('all.pftrace', name)}"]
    slices = [s for s in Drawn(Path("again.pftrace")).slices if s.name == "forward"]
    assert len(slices) == 3 * len([s for s in Drawn(Path("a.pftrace")).slices if s.name == "forward"])


def test_another_format_of_what_a_merged_trace_holds() -> None:
    merged("a.pftrace", "b.pftrace")
    write_trace(Path("a.json"), HOST, program(0, 10))
    assert merged("all.pftrace", "a.json", output="again.pftrace").problems == [f"a.json: it {ALREADY}"]


def test_a_merge_of_merges_knows_what_is_in_them() -> None:
    merged("a.pftrace", "b.pftrace")
    merged("all.pftrace", "c.pftrace", output="more.json")
    outcome = merged("more.json", "a.pftrace", "all.pftrace", "c.pftrace", output="again.pftrace")
    assert outcome.merged == ["more.json"]
    assert outcome.problems == [
        "a.pftrace: it is in more.json already, so it is merged once",
        "all.pftrace: all that is in it is in more.json too, so it is merged once",
        "c.pftrace: it is in more.json already, so it is merged once",
    ]


def test_merged_traces_that_share_a_recording() -> None:
    merged("a.pftrace", "b.pftrace", output="ab.pftrace")
    merged("b.pftrace", "c.pftrace", output="bc.pftrace")
    outcome = merged("ab.pftrace", "bc.pftrace", output="again.pftrace")
    assert outcome.merged == ["ab.pftrace"]
    [problem] = outcome.problems
    assert problem.startswith("bc.pftrace: some of what is in it is in ab.pftrace too and would be drawn twice, ")


def test_other_tools_traces_are_known_by_their_bytes_gzipped_or_not() -> None:
    Path("p.json").write_bytes(KINETO.read_bytes())
    Path("p.json.gz").write_bytes(gzip.compress(KINETO.read_bytes()))
    outcome = merged("a.pftrace", "p.json", "p.json.gz")
    assert outcome.merged == ["a.pftrace", "p.json"]
    assert outcome.problems == ["p.json.gz: holds the same as p.json, which is merged instead"]
    assert merged("all.pftrace", "p.json", output="again.pftrace").problems == [f"p.json: it {ALREADY}"]
    assert rows("again.pftrace") == rows("all.pftrace")


def test_a_part_that_was_merged_stands_in_for_the_whole_and_that_is_said() -> None:
    whole = Path("a.pftrace").read_bytes()
    Path("a.pftrace").write_bytes(whole[: len(whole) - 40])
    assert len(merged("a.pftrace", "b.pftrace").problems) == 1  # that it is cut short
    Path("a.pftrace").write_bytes(whole)
    outcome = merged("all.pftrace", "a.pftrace", output="again.pftrace")
    assert outcome.merged == ["all.pftrace"]
    [problem] = outcome.problems
    assert problem.startswith(f"a.pftrace: it {ALREADY}, as far as it had come when that was made: ")
    outcome = merged("all.pftrace", "a.pftrace", "b.pftrace", output="again.pftrace")
    assert outcome.merged == ["a.pftrace", "b.pftrace"]


def test_a_torn_copy_does_not_stand_in_for_what_was_merged_whole() -> None:
    merged("a.pftrace", "b.pftrace")
    whole = Path("a.pftrace").read_bytes()
    Path("a.pftrace").write_bytes(whole[: len(whole) - 40])
    outcome = merged("all.pftrace", "a.pftrace", "b.pftrace", output="again.pftrace")
    assert outcome.merged == ["all.pftrace"]
    assert f"a.pftrace: it {ALREADY}" in outcome.problems


def test_one_file_given_by_several_names_is_told() -> None:
    os.symlink("a.pftrace", "link.pftrace")
    os.mkdir("run")
    os.rename("b.pftrace", "run/b.pftrace")
    outcome = merged("a.pftrace", "./a.pftrace", "a.pftrace", "link.pftrace", "run", "run/b.pftrace", "c.pftrace")
    assert outcome.merged == ["a.pftrace", "run/b.pftrace", "c.pftrace"]
    assert outcome.problems == [
        "a.pftrace: is given 4 times, also as ./a.pftrace, link.pftrace, and read once",
        "run/b.pftrace: is given 2 times, and read once",
    ]
    assert len(Drawn(Path("all.pftrace")).processes()) == 3


def test_hosts_beside_a_merged_trace_of_several_keep_their_processes_apart() -> None:
    for name, number in [("d", 3), ("e", 4), ("f", 5)]:
        host = Host(f"node{number}", boottime_ns=number * 10**12)
        write_trace(Path(f"{name}.pftrace"), host, program(64 * number, 10), number=number)
    assert merged("a.pftrace", "d.pftrace").hosts == 2
    outcome = merged("all.pftrace", "b.pftrace", "e.pftrace", "f.pftrace", output="again.pftrace")
    assert outcome.problems == []
    pids = {10, 11, (1 << 22) + 10, (2 << 22) + 10, (3 << 22) + 10}
    assert set(Drawn(Path("again.pftrace")).processes()) == pids
    merged("c.pftrace", "d.pftrace", output="cd.pftrace")
    merged("b.pftrace", "e.pftrace", output="be.pftrace")
    outcome = merged("cd.pftrace", "be.pftrace", "a.pftrace", output="last.pftrace")
    assert outcome.merged == ["cd.pftrace", "a.pftrace"]
    [problem] = outcome.problems
    assert problem.startswith("be.pftrace: it is merged of several hosts, and so is another: ")
