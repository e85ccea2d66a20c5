"""What `gputrace record` says, and where it refuses."""

from __future__ import annotations

import gzip
import os
import re
import sys
from pathlib import Path

import pytest

from gputrace import hot
from tests.record.running import GPUTRACE, ONE_SPAN, PYTHON, WRITTEN, left_behind, recording, run
from tests.record.test_terminal import Terminal

NO_DRIVER = not os.path.exists("/dev/nvidiactl")


def said(stderr: bytes) -> list[str]:
    return [line.removeprefix("gputrace: ") for line in stderr.decode().splitlines()]


def test_one_line_at_the_end(tmp_path: Path) -> None:
    result = run(recording(PYTHON, "-c", ONE_SPAN), tmp_path)
    assert result.stdout == b"done\n"
    (line,) = said(result.stderr)
    assert re.fullmatch(
        r"wrote trace\.pftrace: [\d.]+ (bytes|kB), 1 slice, 0 GPU windows, 0 dropped; open it in https://ui\.perfetto\.dev",
        line,
    ), line


def test_quiet_says_nothing(tmp_path: Path) -> None:
    command = [*GPUTRACE, "record", "--quiet", PYTHON, "-c", ONE_SPAN]
    result = run(command, tmp_path)
    assert (result.stdout, result.stderr) == (b"done\n", b"")
    assert (tmp_path / "trace.pftrace").exists()


def test_auto_says_what_it_chose_in_one_line(tmp_path: Path) -> None:
    result = run(recording(PYTHON, "-c", ONE_SPAN, device="auto"), tmp_path)
    chosen, _ = said(result.stderr)
    if NO_DRIVER:
        assert chosen == ("host spans only: no NVIDIA driver (gputrace doctor says more; --device host silences this)")
    else:
        assert chosen.startswith("cuda: ")


def test_gpu_windows_are_counted_with_their_uncertainty(tmp_path: Path) -> None:
    program = """
import gputrace
from gputrace.devices.simulated import default_gpu
stream = default_gpu().stream()
for _ in range(10):
    with gputrace.span("kernel", stream=stream):
        stream.launch(100_000)
stream.synchronize()
"""
    result = run(recording(PYTHON, "-c", program, device="simulated"), tmp_path)
    assert "10 GPU windows, 0 dropped, placed to within" in said(result.stderr)[-1]


@pytest.mark.parametrize("name", ["trace.pftrace", "trace.json", "trace.pftrace.gz", "trace.json.gz", "trace.JSON"])
def test_every_suffix(tmp_path: Path, name: str) -> None:
    result = run(recording(PYTHON, "-c", ONE_SPAN, output=name), tmp_path)
    assert " 1 slice," in said(result.stderr)[-1]
    assert said(result.stderr)[-1].endswith("; open it in https://ui.perfetto.dev")
    data = (tmp_path / name).read_bytes()
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    assert b"work" in data
    assert data.startswith(b"[") == (".json" in name.lower())


def test_a_program_that_changes_its_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    program = "import os; os.chdir('/')\n" + ONE_SPAN
    result = run(recording(PYTHON, "-c", program, output="sub/../sub/trace.pftrace"), tmp_path)
    assert "wrote sub/trace.pftrace" in said(result.stderr)[-1]
    assert os.listdir(tmp_path / "sub") == ["trace.pftrace"]


def test_an_existing_trace_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    trace = tmp_path / "trace.pftrace"
    trace.write_text("old")
    program = ONE_SPAN + "\nassert open('trace.pftrace').read() == 'old'"
    assert run(recording(PYTHON, "-c", program), tmp_path).returncode == 0
    assert b"work" in trace.read_bytes()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["true"], "no Python process that gputrace could reach was started"),
        ([PYTHON, "-c", "pass"], "one Python process ran and opened no span"),
        ([PYTHON, "-I", "-c", "pass"], "started with -I, which ignores PYTHONPATH"),
        ([PYTHON, "-Wd", "-X", "utf8", "-bE", "-c", "pass"], "started with -E, which ignores PYTHONPATH"),
        ([PYTHON, "-S", "-c", "pass"], "started with -S, which skips sitecustomize"),
        (["env", "-i", PYTHON, "-c", "pass"], "taken out of its environment"),
    ],
)
def test_nothing_traced_says_why(tmp_path: Path, command: list[str], why: str) -> None:
    result = run(recording(*command), tmp_path)
    assert result.returncode == 0
    assert "nothing was traced" in said(result.stderr)[-1]
    assert why in said(result.stderr)[-1]
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_untraced_keeps_its_exit_code_and_an_older_file(tmp_path: Path) -> None:
    (tmp_path / "trace.pftrace").write_bytes(b"of yesterday")
    result = run(recording(PYTHON, "-c", "raise SystemExit(3)"), tmp_path)
    assert result.returncode == 3
    assert "(trace.pftrace is from an earlier recording)" in said(result.stderr)[-1]
    assert (tmp_path / "trace.pftrace").read_bytes() == b"of yesterday"


KILLED = "killed, or left by os._exit or exec"
ABRUPT = "ended without cleaning up (killed, os._exit or exec; a multiprocessing.Pool ends its workers so)"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os; os._exit(0)", "one Python process ran and opened no span"),
        (
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; os._exit(0)'])",
            "2 Python processes ran and opened no span",
        ),
        ("import os, sys; os.execv(sys.executable, ['python', '-c', 'pass'])", "opened no span"),
        ("import os; open(os.environ['GPUTRACE_RECORD'] + '/notes', 'w').write('1 it broke\\n')", "failed, see above"),
    ],
)
def test_nothing_traced_though_python_ran(tmp_path: Path, program: str, why: str) -> None:
    result = run(recording(PYTHON, "-c", program), tmp_path)
    assert said(result.stderr)[-1].startswith("nothing was traced: ")
    assert why in said(result.stderr)[-1]
    assert left_behind(tmp_path) == []


def test_nothing_traced_because_a_recording_inside_did(tmp_path: Path) -> None:
    inner = recording(PYTHON, "-c", ONE_SPAN, output="inner.pftrace")
    result = run(recording(*inner, output="outer.pftrace"), tmp_path)
    assert "innermost alone" in said(result.stderr)[-1]
    assert str(tmp_path / "inner.pftrace") in said(result.stderr)[-1]


def test_nothing_traced_beside_an_old_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.pftrace").write_text("old")
    result = run(recording("true"), tmp_path)
    assert said(result.stderr)[-1].endswith("(trace.pftrace is from an earlier recording)")
    assert (tmp_path / "trace.pftrace").read_text() == "old"


def test_a_process_that_was_killed_is_told(tmp_path: Path) -> None:
    program = f"{ONE_SPAN}{WRITTEN}os.kill(os.getpid(), 9)"
    result = run(recording(PYTHON, "-c", program), tmp_path)
    (line,) = said(result.stderr)
    assert " kB, 1 slice, " in line or " bytes, 1 slice, " in line
    compiled = hot.TWIN == "compiled"
    missing = "all its recorded host slices are there" if compiled else "slices of its last moments may be missing"
    dropped = ", 0 dropped" if compiled else ""  # only a ring outlives the process and says what it dropped last
    assert f"0 GPU windows{dropped}; 1 process {ABRUPT}: {missing}; open it" in line


def test_slices_that_were_cut_short_are_told(tmp_path: Path) -> None:
    program = """
import gputrace
for inside in range(2):
    spans = [gputrace.span(name).__enter__() for name in ("outer", "b", "c")[: 3 - inside]]
    for span in spans:
        span.__exit__(None, None, None)
"""
    result = run(recording(PYTHON, "-c", program), tmp_path)
    told, wrote = said(result.stderr)
    assert told == "3 slices were cut short because a span around them was closed first"
    assert "5 slices, 0 GPU windows, 0 dropped; open it" in wrote


def test_windows_that_failed_are_told(tmp_path: Path) -> None:
    program = """
import gputrace
from gputrace.devices.simulated import default_gpu
stream = default_gpu().stream()
with gputrace.span("outer", stream=stream), gputrace.span("inner", stream=stream):
    stream.launch(100_000)
    gputrace.failure("illegal memory access", stream)
with gputrace.span("fine", stream=stream):
    stream.launch(100_000)
"""
    result = run(recording(PYTHON, "-c", program, device="simulated"), tmp_path)
    (line,) = said(result.stderr)
    assert "3 GPU windows, 0 dropped, 2 windows failed or could not be read, placed to within" in line


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "1 window is drawn before its own enqueue; its clock cannot be trusted"),
        (5, "5 windows are drawn before their own enqueue; their clock cannot be trusted"),
    ],
)
def test_windows_before_their_own_enqueue_are_told(tmp_path: Path, count: int, told: str) -> None:
    program = f"""
import gputrace
from gputrace.devices.simulated import default_gpu
gpu = default_gpu()
stream, record = gpu.stream(), gpu.record_raw

def record_early(event, on):  # but for the anchors, which are on a stream of gputrace's own
    code = record(event, on)
    event.true_host_ns -= 50_000_000 * (on is stream)
    return code

gpu.record_raw = record_early
for _ in range({count}):
    with gputrace.span("window", stream=stream):
        stream.launch(1_000_000)
"""
    result = run(recording(PYTHON, "-c", program, device="simulated"), tmp_path)
    line, wrote = said(result.stderr)
    assert line == told
    assert f"{count} GPU window" in wrote


@pytest.mark.parametrize(
    ("moved", "line"), [(2, None), (3, "3 begins and ends of 20 slices reached their rows out of")]
)
def test_edges_that_were_moved_are_told_where_they_are_many(tmp_path: Path, moved: int, line: str | None) -> None:
    # Claims a shard beside its own and reports on it: that many are moved only by races.
    program = f"""
{ONE_SPAN}
import os
from gputrace.shards import ShardFolder
folder = ShardFolder.open(os.environ["GPUTRACE_RECORD"])
folder.write_report(folder.claim(), {{"slices": 19, "clamped": {moved}, "ended": 1}})
"""
    *told, wrote = said(run(recording(PYTHON, "-c", program), tmp_path).stderr)
    assert "20 slices" in wrote
    assert [each[: len(line or "")] for each in told] == ([] if line is None else [line])


def test_quiet_still_says_what_bends_the_picture(tmp_path: Path) -> None:
    program = """
import gputrace
outer, inner = gputrace.span("outer"), gputrace.span("inner")
outer.__enter__(), inner.__enter__(), outer.__exit__(None, None, None), inner.__exit__(None, None, None)
"""
    result = run([*GPUTRACE, "record", "--quiet", "--device", "host", PYTHON, "-c", program], tmp_path)
    assert said(result.stderr) == ["1 slice was cut short because a span around it was closed first"]


def test_a_shard_that_met_a_full_disk_is_not_called_whole(tmp_path: Path) -> None:
    program = f"""
{ONE_SPAN}
import resource
{WRITTEN}
os.mkdir("trace.pftrace")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for n in range(1000):
    with gputrace.span(str(n)):
        pass
"""
    result = run(recording(PYTHON, "-c", program), tmp_path)
    assert result.returncode == 0
    line = said(result.stderr)[-1]
    (folder,) = left_behind(tmp_path)
    assert "File too large" in line
    assert f"What was recorded up to then is in {tmp_path / folder}; " in line
    assert "Nothing recorded is lost" not in line


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_python_is_traced_from_its_import_on(tmp_path: Path, option: str) -> None:
    program = f"import sys; sys.path[:] = {sys.path!r}; import site; site.main()\n" + ONE_SPAN
    result = run(recording(PYTHON, option, "-c", program), tmp_path)
    assert result.stdout == b"done\n"
    assert "1 slice," in said(result.stderr)[-1]


@pytest.mark.skipif(not NO_DRIVER, reason="has a driver")
def test_cuda_without_a_driver_is_refused_before_the_command_starts(tmp_path: Path) -> None:
    result = run(recording(PYTHON, "-c", "open('ran', 'w')", device="cuda"), tmp_path)
    assert result.returncode == 1
    assert b"driver" in result.stderr
    assert result.stderr.count(b"\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "why", "exit_code"),
    [
        (["--device", "tpu"], "simulated", 2),
        (["-o", "trace.foo"], ".pftrace, .json", 2),
        (["-o", "/etc/passwd/trace.json"], "/etc/passwd is a file", 1),
        (["-o", "/sys/trace.json"], "its folder takes no new files", 1),  # not even root's
        (["-o", "missing/trace.json"], "does not exist; make it first", 1),
        (["--devcie", "host"], "--devcie", 2),
        (["--device"], "requires an argument", 2),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(tmp_path: Path, options: list[str], why: str, exit_code: int) -> None:
    rest = ["--", PYTHON, "-c", "open('ran', 'w')"] if options[1:] else []
    result = run([*GPUTRACE, "record", *options, *rest], tmp_path)
    assert result.returncode == exit_code
    (line,) = said(result.stderr)
    assert why in line
    assert os.listdir(tmp_path) == []


def test_exit_0_stays_0_when_the_trace_cannot_be_written(tmp_path: Path) -> None:
    program = ONE_SPAN + "\nimport os; os.mkdir('trace.pftrace')"
    result = run(recording(PYTHON, "-c", program), tmp_path)
    assert result.returncode == 0
    assert "Nothing recorded is lost" in said(result.stderr)[-1]

    (folder,) = left_behind(tmp_path)
    (tmp_path / "trace.pftrace").rmdir()
    merged = run([*GPUTRACE, "merge", folder, "-o", "trace.pftrace"], tmp_path)
    assert merged.returncode == 0, merged.stderr
    assert "1 slice," in said(merged.stderr)[-1]
    assert left_behind(tmp_path) == []


def test_a_long_join_shows_its_progress_on_a_terminal_only(tmp_path: Path) -> None:
    # Claims a shard beside its own and fills it with what loads: blank lines do not, so a metadata event.
    program = """
import os
from gputrace.shards import ShardFolder
folder = ShardFolder.open(os.environ["GPUTRACE_RECORD"])
event = b'{"ph":"M","name":"process_name","pid":1,"tid":1,"args":{"name":"' + b"x" * 65536 + b'"}},\\n'
with open(folder.shard_path(folder.claim()), "wb") as shard:
    for _ in range(600):
        shard.write(event)
"""
    command = recording(PYTHON, "-c", program, output="trace.json.gz")
    assert b"joining" not in run(command, tmp_path).stderr
    terminal = Terminal(command, tmp_path)
    assert terminal.exit_code() == 0
    assert b"joining" in terminal.shown


def test_without_stderr_nothing_goes_to_stdout(tmp_path: Path) -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *recording(PYTHON, "-c", "print('alone')")]
    result = run(command, tmp_path)
    assert result.stdout == b"alone\n"
    assert result.returncode == 0


def test_that_something_is_to_be_built_is_said_before_the_command_and_once(tmp_path: Path) -> None:
    environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    telling = "import sys, gputrace\nwith gputrace.span('x'): print('runs', file=sys.stderr, flush=True)"
    command = recording(PYTHON, "-c", telling)
    command.insert(command.index("record") + 1, "--torch-ops")
    first, second, *_ = said(run(command, tmp_path, env=environ).stderr)
    assert first.startswith("torch.ops: what tells of them is built first")
    assert second == "runs"
    (tmp_path / "cache" / "gputrace").mkdir(parents=True)
    (tmp_path / "cache" / "gputrace" / "torch-2.13.0-0123456789abcdef.so").touch()
    assert b"built" not in run(command, tmp_path, env=environ).stderr
