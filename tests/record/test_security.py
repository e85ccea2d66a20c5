"""What a recording must not give away: to other users of the machine while it runs, to whoever gets the trace later."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

import pytest

from gputrace.errors import OutputError
from gputrace.record.recording import checked_output
from gputrace.record.replace import replacing
from tests.record.running import PYTHON, WRITTEN, left_behind, recording, run
from tests.ways.program import SUFFIXES, load

SECRET = "hunter2"
CHILD = """
import gputrace, sys
with gputrace.span("child"): pass
"""
PROGRAM = f"""
import gputrace, subprocess, sys
with gputrace.span("parent"): pass
url = "--url=postgresql://me:" + sys.argv[2] + "@db/x"
subprocess.run([sys.executable, "-c", {CHILD!r}, "--token", sys.argv[2], url])
"""
ALL_FILES = """
import glob, os
for path in glob.glob(os.environ["GPUTRACE_RECORD"] + "/*"):
    try:
        print(path, oct(os.stat(path).st_mode & 0o777), open(path, "rb").read())
    except FileNotFoundError:
        assert path.endswith(".new")  # it has its name by now
print(oct(os.stat(os.environ["GPUTRACE_RECORD"]).st_mode & 0o777))
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_secrets_in_command_lines_are_masked(tmp_path: Path, suffix: str) -> None:
    command = [
        PYTHON,
        "-c",
        PROGRAM,
        "--password",
        SECRET,
        f"API_KEY={SECRET}",
        f"--header=Authorization: Bearer {SECRET}",
    ]
    assert run(recording(*command, output=f"t{suffix}"), tmp_path).returncode == 0
    trace = (tmp_path / f"t{suffix}").read_bytes()
    assert SECRET.encode() not in trace
    for kept in (
        b"--password",
        b"API_KEY=***",
        b"--header=Authorization: ***",
        b"--token",
        b"postgresql://me:***@db/x",
    ):
        assert kept in trace
    assert {each.name for each in load(tmp_path / f"t{suffix}")} == {"parent", "child"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unless_it_is_asked_for(tmp_path: Path, suffix: str) -> None:
    command = recording(PYTHON, "-c", PROGRAM, "--password", SECRET, output=f"t{suffix}")
    command.insert(command.index("--"), "--unmasked")
    assert run(command, tmp_path).returncode == 0
    # In the metadata, and for the parent and the child in each's own.
    assert (tmp_path / f"t{suffix}").read_bytes().count(SECRET.encode()) >= 4


def test_a_program_that_records_itself_masks_its_own(tmp_path: Path) -> None:
    program = "import gputrace\nwith gputrace.trace('t.json', device='host'), gputrace.span('x'): pass"
    assert run([PYTHON, "-c", program, "--api-key", SECRET], tmp_path).returncode == 0
    trace = (tmp_path / "t.json").read_text()
    assert "--api-key" in trace
    assert SECRET not in trace


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".json.gz"])
def test_no_environment_variable_is_written(tmp_path: Path, suffix: str) -> None:
    """Neither into the trace nor, while the program runs, beside it."""
    environment = {**os.environ, "A_VARIABLE_OF_MINE": "its value"}
    program = f"import gputrace, os\nwith gputrace.span('x'): pass\n{WRITTEN}\n{ALL_FILES}"
    done = run(recording(PYTHON, "-c", program, output=f"t{suffix}"), tmp_path, env=environment, umask=0)
    assert b".shard" in done.stdout
    for data in (done.stdout, (tmp_path / f"t{suffix}").read_bytes()):
        assert b"its value" not in data
        assert b"A_VARIABLE_OF_MINE" not in data


def test_everything_is_private_while_it_runs_whatever_the_umask(tmp_path: Path) -> None:
    program = f"import gputrace\nwith gputrace.span('x'): pass\n{WRITTEN}\n{ALL_FILES}"
    done = run(recording(PYTHON, "-c", program), tmp_path, umask=0)
    *files, folder = done.stdout.decode().splitlines() or [""]
    assert folder == "0o700", done
    assert len(files) > 5, done
    assert all(" 0o600 " in line for line in files), files


def test_a_link_in_a_shard_s_place_is_not_followed(tmp_path: Path) -> None:
    """Nobody else can put one there; should somebody, the program's tracing ends and the link's target stays."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    program = f"""
import glob, os, time, gputrace
(shard,) = glob.glob(os.environ["GPUTRACE_RECORD"] + "/*.shard")
os.unlink(shard)
os.symlink({str(victim)!r}, shard)
os.closerange(3, 1000)  # so that it is opened anew
with gputrace.span("x"): pass
time.sleep(0.3)
print("went on")
"""
    done = run(recording(PYTHON, "-c", program), tmp_path)
    assert (done.returncode, done.stdout) == (0, b"went on\n")
    assert victim.read_text() == "untouched"
    assert b"stopped" in done.stderr


def test_names_in_a_shared_folder_cannot_be_foreseen(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        done = run(recording(PYTHON, "-c", "import os; print(os.environ['GPUTRACE_RECORD'])"), tmp_path)
        names.add(done.stdout.decode().strip().rpartition(".")[2])
    assert len(names) == 3
    assert {len(name) for name in names} == {12}, "48 bits"


def test_a_file_waiting_where_the_trace_is_written_is_not_used(tmp_path: Path) -> None:
    """It might be another user's, who would go on reading it: its name can be seen while the recording runs."""
    waiting = tmp_path / ".t.json.0123.joined"
    waiting.write_text("put here by somebody")
    reader = waiting.open()
    with replacing(str(tmp_path / "t.json"), "0123.joined") as write:
        write(b"the trace")
    assert reader.read() == "put here by somebody"
    assert (tmp_path / "t.json").read_text() == "the trace"
    waiting.symlink_to(tmp_path / "elsewhere")
    with replacing(str(tmp_path / "t.json"), "0123.joined") as write:
        write(b"another")
    assert (tmp_path / "t.json").read_text() == "another"
    assert not (tmp_path / "elsewhere").exists()


def test_a_trace_that_only_its_owner_may_read_is_never_readable_by_others(tmp_path: Path) -> None:
    output = tmp_path / "t.json"
    output.touch(0o600)
    with replacing(str(output), "x") as write:
        assert stat.S_IMODE((tmp_path / ".t.json.x").stat().st_mode) == 0o600
        write(b"the trace")
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_another_user_s_link_in_a_shared_folder_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "t.json"
    link.symlink_to(tmp_path / "victim.json")
    assert checked_output(str(link)) == str(tmp_path / "victim.json")
    os.lchown(link, 65534, 65534)
    with pytest.raises(OutputError, match="another user's link"):
        checked_output(str(link))
    shared.chmod(0o755)
    assert checked_output(str(link)) == str(tmp_path / "victim.json")


def _like_any_user() -> None:
    """Permissions hold for root, too: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, as of the next exec."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; refused to those who have none anyway


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_umask_that_takes_the_owner_s_own_rights(tmp_path: Path, suffix: str) -> None:
    """The command's and a program's: what is ours in the folder stays ours, the trace is as private as asked."""
    child = "import gputrace, os\nwith gputrace.span('child'): pass\n"
    program = f"""
import gputrace, os, subprocess, sys
os.umask(0o777)
with gputrace.span("parent"): pass
subprocess.run([sys.executable, "-c", {child!r}], check=True)
"""
    for umask in (0o777, 0o277, 0o022):
        trace = tmp_path / f"{umask}{suffix}"
        command = recording(PYTHON, "-c", program, output=trace)
        done = run(command, tmp_path, preexec_fn=_like_any_user, umask=umask)
        assert done.returncode == 0, done.stderr
        assert stat.S_IMODE(trace.stat().st_mode) == 0o666 & ~umask
        trace.chmod(0o600)
        assert sorted(each.name for each in load(trace)) == ["child", "parent"], done.stderr
    assert left_behind(tmp_path) == []
