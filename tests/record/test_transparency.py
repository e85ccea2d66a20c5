"""Whoever starts `gputrace record` sees what it would have seen of the command alone."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputrace.record import launch
from tests.record.running import PYTHON, WRITTEN, left_behind, recording, run, start, wait_for


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        "raise SystemExit(3)",
        "raise SystemExit(255)",
        "import os; os._exit(7)",
        "raise RuntimeError('uncaught')",
        *(f"import os; os.kill(os.getpid(), {int(number)})" for number in (signal.SIGTERM, signal.SIGINT)),
        *(f"import os; os.kill(os.getpid(), {int(number)})" for number in (signal.SIGKILL, signal.SIGSEGV)),
        "import os; os.abort()",
        "import signal; signal.raise_signal(13); signal.signal(13, signal.SIG_DFL); signal.raise_signal(13)",
    ],
)
def test_exit_status(tmp_path: Path, program: str) -> None:
    plain = run([PYTHON, "-c", program], tmp_path)
    traced = run(recording(PYTHON, "-c", program), tmp_path)

    assert traced.returncode == plain.returncode
    assert traced.stdout == plain.stdout
    assert b"uncaught" in traced.stderr if b"uncaught" in plain.stderr else True
    assert left_behind(tmp_path) == []


def test_stdout_is_the_commands_alone(tmp_path: Path) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"
    assert run(recording(PYTHON, "-c", program), tmp_path).stdout == bytes(range(256)) * 1000


def test_piped_stdin_passes_through(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    program = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    assert run(recording(PYTHON, "-c", program), tmp_path, input=data).stdout == data


@pytest.mark.parametrize("arguments", [["a b", "", "ü☃", "--", "-o", "--device"], [b"\xff\xfe", b"a\nb"]])
def test_arguments_pass_through(tmp_path: Path, arguments: list[str | bytes]) -> None:
    command = [PYTHON, "-c", "import os, sys; print([os.fsencode(a) for a in sys.argv[1:]])", *arguments]
    assert run(recording(*command), tmp_path).stdout == run(command, tmp_path).stdout


def test_without_a_dash_dash_the_commands_options_are_its_own(tmp_path: Path) -> None:
    command = [*recording()[:-1], PYTHON, "-c", "import sys; print(sys.argv[1:])", "-o", "x", "--", "--quiet"]
    assert run(command, tmp_path).stdout == b"['-o', 'x', '--', '--quiet']\n"


def test_environment_gains_two_variables(tmp_path: Path) -> None:
    own = os.environ.get("PYTHONPATH", "/no/such/folder")
    environment = {"PATH": os.environ["PATH"], "LANG": "C", "ODD": "\udcff", "PYTHONPATH": own}
    plain = run(["env", "-0"], tmp_path, env=environment).stdout.split(b"\0")
    traced = run(recording("env", "-0"), tmp_path, env=environment).stdout.split(b"\0")

    added = {entry.partition(b"=")[0] for entry in set(traced) ^ set(plain)}
    assert added == {b"PYTHONPATH", b"GPUTRACE_RECORD"}
    assert any(entry.startswith(b"PYTHONPATH=") and entry.endswith(b":" + own.encode()) for entry in traced)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_signal_mask_and_dispositions_are_inherited(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL); signal.signal(signal.SIGXFSZ, signal.SIG_DFL); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}); os.execvp(sys.argv[1], sys.argv[1:])"
    )

    # glibc's own two, which every program started with posix_spawn finds ignored and the C library sets up anew.
    internal = 0b11 << 31

    def signals(command: list[str | bytes]) -> list[int]:
        shown = run([PYTHON, "-c", program, *command], tmp_path).stdout.splitlines()
        masks = [line.split()[1] for line in shown if line.startswith((b"SigBlk", b"SigIgn", b"SigCgt"))]
        return [int(mask, 16) & ~internal for mask in masks]

    status: list[str | bytes] = ["cat", "/proc/self/status"]
    assert signals(recording(*status)) == signals(status)


def test_inherited_descriptors_stay_open(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    program = f"import os; os.write({writing}, b'through')"
    assert run(recording(PYTHON, "-c", program), tmp_path, pass_fds=[writing]).returncode == 0
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    os.close(writing)


# A program that writes down each signal it gets, until half a second after the first.
LISTENS = """
import gputrace, pathlib, signal, sys, time
got = []
for number in (1, 2, 10, 12, 15):
    signal.signal(number, lambda n, _: got.append(n))
pathlib.Path("ready").write_text("yes")
end = time.monotonic() + 30
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
with gputrace.span("ending"):
    print(got)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_to_the_launcher_reaches_the_command_once(tmp_path: Path, number: signal.Signals) -> None:
    with start(recording(PYTHON, "-c", LISTENS), tmp_path, stdout=subprocess.PIPE) as launcher:
        wait_for(tmp_path / "ready")
        launcher.send_signal(number)
        out, _ = launcher.communicate(timeout=60)
    assert out == f"[{int(number)}]\n".encode()
    assert launcher.returncode == 0
    assert (tmp_path / "trace.pftrace").exists()


def test_a_deadly_signal_kills_both_and_the_trace_is_written(tmp_path: Path) -> None:
    program = f"""
import gputrace, pathlib, time
with gputrace.span("before"):
    pass
{WRITTEN}
pathlib.Path("ready").write_text("yes")
time.sleep(60)
"""
    with start(recording(PYTHON, "-c", program), tmp_path) as launcher:
        wait_for(tmp_path / "ready")
        launcher.terminate()
        launcher.wait(60)
    assert launcher.returncode == -signal.SIGTERM
    assert (tmp_path / "trace.pftrace").exists()
    assert left_behind(tmp_path) == []


def test_a_stopped_job_is_seen_stopped_and_goes_on(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGTSTP); print('went on')"
    command = recording(PYTHON, "-c", program)
    # A group of its own, so that it is no orphan: the kernel does not stop those.
    with start(command, tmp_path, stdout=subprocess.PIPE, process_group=0) as launcher:
        _, status = os.waitpid(launcher.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        launcher.send_signal(signal.SIGCONT)
        out, _ = launcher.communicate(timeout=60)
    assert out == b"went on\n"
    assert launcher.returncode == 0


def test_the_launcher_is_called_now_and_then_while_it_waits() -> None:
    ticks: list[float] = []
    with launch.Signals() as signals:
        running = launch.start(["sleep", "1"], dict(os.environ), signals)
        assert running.wait(lambda: ticks.append(time.monotonic()), every_s=0.1) == 0
    signal.pthread_sigmask(signal.SIG_SETMASK, signals.mask_before)  # a launcher has come to its end here
    assert len(ticks) >= 3
    assert min(b - a for a, b in itertools.pairwise(ticks)) >= 0.1


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    result = run(recording("no-such-command"), tmp_path)
    assert result.returncode == 127
    assert b"command not found: no-such-command" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("command", "meant", "exit_code"),
    [("my.py", "python my.py", 127), ("./my.py", "python ./my.py", 126), ("my.sh", "./my.sh", 127)],
)
def test_a_file_named_as_the_command(tmp_path: Path, command: str, meant: str, exit_code: int) -> None:
    (tmp_path / command).write_text("pass")
    result = run(recording(command), tmp_path)
    assert result.returncode == exit_code
    assert f"did you mean: {meant}?".encode() in result.stderr


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("text")
    result = run(recording("./data"), tmp_path)
    assert result.returncode == 126
    assert b"./data: Permission denied" in result.stderr
    assert os.listdir(tmp_path) == ["data"]


def test_a_script_whose_interpreter_does_not_exist(tmp_path: Path) -> None:
    _script(tmp_path, "#!/no/such/interpreter\n")
    result = run(recording("./script"), tmp_path)
    assert result.returncode == 127
    assert b"the interpreter that its first line names does not exist" in result.stderr


def test_a_script_without_a_first_line_is_run_as_a_shell_would(tmp_path: Path) -> None:
    _script(tmp_path, "echo $0 $1\n")
    assert run(recording("./script", "x"), tmp_path).stdout == b"./script x\n"


def _script(folder: Path, text: str) -> None:
    (folder / "script").write_text(text)
    (folder / "script").chmod(0o755)
