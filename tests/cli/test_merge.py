"""What `gputrace merge` takes, what it says, and what it refuses."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from gputrace.model import SLICE
from tests.cli.test_record import said
from tests.exporters.recordings import Script
from tests.merging.making import Drawn, Host, program, write_trace
from tests.record.running import GPUTRACE, PYTHON, left_behind, recording, run, start

HOST, OTHER = Host("node0"), Host("node1", boottime_ns=5 * 10**12)
KINETO = Path(__file__).parent.parent / "merging" / "kineto.json"


def merge(cwd: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit code and what was said."""
    done = run([*GPUTRACE, "merge", *arguments], cwd)
    assert done.stdout == b""
    assert left_behind(cwd) == []
    return done.returncode, said(done.stderr)


def two(folder: Path, names: tuple[str, str] = ("a.pftrace", "b.pftrace")) -> None:
    write_trace(folder / names[0], HOST, program(0, 10))
    write_trace(folder / names[1], OTHER, program(0, 10), number=1)


def test_one_line_at_the_end(tmp_path: Path) -> None:
    two(tmp_path)
    code, lines = merge(tmp_path, "a.pftrace", "b.pftrace", "-o", "all.pftrace")
    assert code == 0
    [line] = lines
    assert line.startswith("wrote all.pftrace: ")
    assert line.endswith(" kB, 2 traces of 2 hosts; open it in https://ui.perfetto.dev")


def test_folders_and_patterns_but_not_the_output_nor_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "run" / "node1").mkdir(parents=True)
    (tmp_path / "run" / ".hidden").mkdir()
    two(tmp_path / "run", ("a.pftrace", "node1/b.json.gz"))
    (tmp_path / "run" / "notes.txt").write_text("not asked for")
    (tmp_path / "run" / ".hidden" / "x.pftrace").write_bytes(b"nor this")
    for _ in range(2):  # the second time the first's output lies there too
        code, lines = merge(tmp_path, "run", "-o", "run/all.pftrace", "--strict")
        assert (code, len(lines)) == (0, 1), lines
        assert "2 traces of 2 hosts" in lines[0]
    code, lines = merge(tmp_path, "run/**/*.json.gz", "run/[a].pftrace", "-o", "all.json", "--strict")
    assert (code, len(lines)) == (0, 1), lines
    assert len(Drawn(tmp_path / "all.json").slices) == 2 * len(Drawn(tmp_path / "run" / "a.pftrace").slices)


def test_what_is_wrong_is_told_by_name_and_the_rest_merged(tmp_path: Path) -> None:
    two(tmp_path)
    whole = (tmp_path / "b.pftrace").read_bytes()
    (tmp_path / "again.pftrace").write_bytes((tmp_path / "a.pftrace").read_bytes())
    write_trace(tmp_path / "other format.json", HOST, program(0, 10))
    (tmp_path / "cut.pftrace").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "b.pftrace").unlink()
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"[" + b'{"ph":"X","name":"a"},' * 99)[:-40])
    write_trace(tmp_path / "newer.pftrace", HOST, program(0, 30), number=3, gputrace_version="9.1.0")
    (tmp_path / "words.json").write_text("once upon a time")
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    (tmp_path / "empty.pftrace").write_bytes(b"")
    (tmp_path / "archive.zip").write_bytes(b"PK\x03\x04rest")
    os.mkfifo(tmp_path / "pipe.json")
    names = ["a.pftrace", *sorted(set(os.listdir(tmp_path)) - {"a.pftrace"})]
    arguments = [*names, "missing.json", "-o", "all.pftrace"]
    code, lines = merge(tmp_path, *arguments)
    assert code == 0
    told = "\n".join(lines)
    for line in [
        "missing.json does not exist",
        "again.pftrace: holds the same bytes as a.pftrace, so it is merged once",
        "cut.pftrace: from byte ",
        "cut.json.gz: the gzip stream is cut short",
        "other format.json: is of the same recording as a.pftrace, which is merged instead",
        "words.json: is not a trace: neither Perfetto's packets nor Chrome's JSON begin it",
        'settings.json: it is JSON, but holds no "traceEvents"',
        "empty.pftrace: is empty",
        "pipe.json: is a pipe, and a trace is read more than once: write it to a file first",
        "archive.zip: is no trace but a zip archive: unpack it, and give the traces in it",
        "newer.pftrace: was written by gputrace 9.1.0",
    ]:
        assert line in told, told
    assert "3 traces of 2 hosts" in lines[-1]  # what is in cut.json.gz states no clock
    drawn = Drawn(tmp_path / "all.pftrace")
    assert {10, 30, (1 << 22) + 10} <= set(drawn.processes())
    assert merge(tmp_path, *arguments, "--strict")[0] == 1


def test_nothing_to_merge(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text("once upon a time")
    code, lines = merge(tmp_path, "words.json", "-o", "all.pftrace")
    assert code == 1
    assert lines[-1].startswith("nothing was merged: ")
    assert os.listdir(tmp_path) == ["words.json"]


def test_another_format_cannot_be_merged_into(tmp_path: Path) -> None:
    two(tmp_path)
    for name in ("all.txt", "all"):
        code, [line] = merge(tmp_path, "a.pftrace", "b.pftrace", "-o", name)
        assert (code, line[:13]) == (2, "cannot write ")


def test_an_older_output_is_kept_if_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "all.pftrace").write_text("old")
    (tmp_path / "words.json").write_text("once upon a time")
    merge(tmp_path, "words.json", "-o", "all.pftrace")
    assert (tmp_path / "all.pftrace").read_text() == "old"


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme.partition("### Merge ranks and hosts\n")[2].partition("\n### ")[0]
    commands = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert len(commands) == 2
    two(tmp_path, ("rank0.pftrace", "rank1.pftrace"))
    for folder in ("node0", "node1"):
        (tmp_path / folder).mkdir()
    two(tmp_path, ("node0/a.pftrace", "node1/b.json"))
    (tmp_path / "profile.json.gz").write_bytes(gzip.compress(KINETO.read_bytes()))
    environment = {**os.environ, "PATH": f"{os.path.dirname(PYTHON)}:{os.environ['PATH']}"}
    for command, traces in zip(commands, ("2 traces of 2 hosts", "3 traces of 3 hosts"), strict=True):
        script = f'gputrace() {{ {PYTHON} -m gputrace "$@"; }}\n{command}'
        done = run(["bash", "-c", script], tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        assert traces in said(done.stderr)[-1]


# --- other tools ------------------------------------------------------------------------------------------------------


def viztracer(cwd: Path, *options: str) -> None:
    (cwd / "fib.py").write_text("def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(5)\n")
    subprocess.run(
        [PYTHON, "-m", "viztracer", *options, "-o", "v.json", "fib.py"], cwd=cwd, capture_output=True, check=True
    )


def test_a_viztracer_file_that_states_no_clock(tmp_path: Path) -> None:
    viztracer(tmp_path)
    done = run(recording(PYTHON, "-c", "import gputrace\nwith gputrace.span('work'): pass"), tmp_path)
    assert done.returncode == 0
    code, lines = merge(tmp_path, "trace.pftrace", "v.json", "-o", "all.pftrace")
    assert code == 0
    assert lines[0].startswith(
        "v.json: it does not state what clock its times are of (viztracer), and gputrace does not "
    )
    assert "--clock v.json=monotonic" in lines[0]
    assert "1 trace;" in lines[-1]
    code, lines = merge(
        tmp_path, "trace.pftrace", "v.json", "-o", "all.pftrace", "--clock", "v.json=monotonic", "--strict"
    )
    assert (code, len(lines)) == (0, 1), lines
    drawn = Drawn(tmp_path / "all.pftrace")
    fibs = [s for s in drawn.slices if s.name and s.name.startswith("fib ")]
    assert len(fibs) == 15
    assert max(s.depth for s in fibs) - min(s.depth for s in fibs) == 4
    [work] = drawn.named("work")
    # viztracer ran first, moments before: their clock is the same.
    assert 0 < work.ts - max(s.ts for s in fibs) < 60 * 10**9
    merge(tmp_path, "trace.pftrace", "v.json", "-o", "off.pftrace", "--clock", "v.json=monotonic+1.5")
    moved = [s for s in Drawn(tmp_path / "off.pftrace").slices if s.name and s.name.startswith("fib ")]
    assert [s.ts for s in moved] == [s.ts + 1_500_000_000 for s in fibs]


def test_a_viztracer_file_that_states_its_clock(tmp_path: Path) -> None:
    program = (
        "import time, viztracer\nt = viztracer.VizTracer(output_file='v.json', verbose=0)\nt.start()\n"
        "print(time.time_ns(), flush=True)\nsorted([2, 1])\nt.stop()\nt.save()"
    )
    before_ns = int(run([PYTHON, "-c", program], tmp_path).stdout)
    write_trace(tmp_path / "a.pftrace", Host("node0", wall_ns=before_ns - 7_000_000_000_123), program_of_one())
    code, lines = merge(tmp_path, "a.pftrace", "v.json", "-o", "all.json", "--strict")
    assert (code, len(lines)) == (0, 1), lines
    drawn = Drawn(tmp_path / "all.json")
    [mark], [call] = drawn.named("mark"), [s for s in drawn.slices if s.name == "builtins.sorted"]
    # `mark` stands where the program read the clock; the call followed, and viztracer's own reading is off by some us.
    assert -1_000_000 < call.ts - mark.ts < 50_000_000


def program_of_one() -> Script:
    script = Script(0, 10)
    script.add(script.thread(), (0, SLICE, "mark", None, 0, 100))
    return script


def test_a_real_torch_profile(tmp_path: Path) -> None:
    profile = json.loads(KINETO.read_text())
    ops = [event for event in profile["traceEvents"] if event["ph"] == "X"]
    first_ns = profile["baseTimeNanoseconds"] + round(min(e["ts"] for e in ops) * 1000)
    write_trace(tmp_path / "a.pftrace", Host("node0", wall_ns=first_ns - 7_000_000_000_123), program_of_one())
    for output in ("all.pftrace", "all.json"):
        code, lines = merge(tmp_path, "a.pftrace", str(KINETO), "-o", output, "--strict")
        assert (code, len(lines)) == (0, 1), lines
        drawn = Drawn(tmp_path / output)
        [mark] = drawn.named("mark")
        found = sorted((s.name, s.ts - mark.ts, s.dur) for s in drawn.slices if s.name != "mark" and s.dur)
        assert found == sorted(
            (e["name"], profile["baseTimeNanoseconds"] + round(e["ts"] * 1000) - first_ns, round(e["dur"] * 1000))
            for e in ops
        )


@pytest.mark.parametrize("clock", ["v.json", "v.json=sundial", "v.json=monotonic+x", "=", "v.json=monotonic+1.2.3"])
def test_a_clock_that_cannot_be_read(tmp_path: Path, clock: str) -> None:
    two(tmp_path)
    code, [line] = merge(tmp_path, "a.pftrace", "-o", "all.pftrace", "--clock", clock)
    assert code == 2
    assert line.startswith(f"--clock {clock}: write FILE=boottime")


@pytest.mark.parametrize(
    ("file", "nearest"),
    [
        ("b.pftrac", "b.pftrace"),
        ("node1/b.pftrace", "b.pftrace"),
        ("c/a.pftrace", "a.pftrace"),
        ("*.pftrace", "a.pftrace"),
    ],
)
def test_a_clock_of_what_is_no_input(tmp_path: Path, file: str, nearest: str) -> None:
    two(tmp_path)
    code, [line] = merge(tmp_path, "a.pftrace", "./b.pftrace", "-o", "all.pftrace", "--clock", f"{file}=monotonic")
    assert code == 2
    assert line.startswith(f"--clock names {file}, which is none of the inputs; did you mean ")
    assert line.endswith(f"{nearest}?")
    assert not (tmp_path / "all.pftrace").exists()


def test_a_clock_where_there_is_no_input_at_all(tmp_path: Path) -> None:
    code, [line] = merge(tmp_path, "gone.json", "-o", "all.pftrace", "--clock", "v.json=monotonic")
    assert (code, line) == (2, "--clock names v.json, which is none of the inputs")
    # Named by both, it is told as any input that is not there.
    code, lines = merge(tmp_path, "gone.json", "-o", "all.pftrace", "--clock", "gone.json=monotonic")
    assert (code, lines[0]) == (1, "gone.json does not exist")


def test_a_clock_of_an_input_by_another_path(tmp_path: Path) -> None:
    viztracer(tmp_path)
    two(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for named, given in (("./v.json", "v.json"), (f"{tmp_path}/v.json", "*.json"), ("link/v.json", "./v.json")):
        code, lines = merge(
            tmp_path, "a.pftrace", given, "-o", "all.pftrace", "--clock", f"{named}=monotonic@node0", "--strict"
        )
        assert (code, len(lines)) == (0, 1), lines
        assert "2 traces;" in lines[0]


@pytest.mark.parametrize("beside", [(), ("a.pftrace",)])
def test_a_clock_of_a_recording_s_folder(tmp_path: Path, beside: tuple[str, ...]) -> None:
    two(tmp_path)
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "recording").touch()
    code, [line] = merge(tmp_path, "left", *beside, "-o", "all.pftrace", "--clock", "left=realtime")
    assert code == 2
    assert "states its clock itself" in line


# --- shards -----------------------------------------------------------------------------------------------------------


def test_shards_of_a_recording_that_goes_on_beside_a_whole_trace(tmp_path: Path) -> None:
    two(tmp_path)
    program = "import gputrace, sys\nwith gputrace.span('early'): pass\nsys.stdin.read()"
    running = start(recording(PYTHON, "-c", program, output="late.pftrace"), tmp_path, stdin=subprocess.PIPE)
    try:
        while not (shards := [path for path in tmp_path.glob(".late*/*.shard") if path.stat().st_size]):
            assert running.poll() is None
        folder = shards[0].parent.name
        done = run([*GPUTRACE, "merge", folder, "a.pftrace", "-o", "all.pftrace"], tmp_path)
        assert done.returncode == 0, done.stderr
        assert [s for s in Drawn(tmp_path / "all.pftrace").slices if s.name == "early"]
        assert left_behind(tmp_path) == [folder]  # it is not done with
    finally:
        running.communicate(b"")
    assert Drawn(tmp_path / "late.pftrace").named("early")
    assert left_behind(tmp_path) == []


def test_an_input_is_never_the_output(tmp_path: Path) -> None:
    trace = tmp_path / "a.json"
    trace.write_text('[\n{"ph":"X","pid":1,"tid":1,"name":"x","ts":1.0,"dur":1.0}\n]\n')
    before = trace.read_bytes()
    words = [*GPUTRACE, "merge", str(trace), "-o", str(trace)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "would be lost: give another name" in done.stderr
    assert trace.read_bytes() == before
