"""Which processes of a recording still run, so that their shards are not taken away under them.

By what each process image noted when it took its shard: it knows its pid, its start and its executable, which together
no other process shares. Linux; elsewhere no process counts as running. One in another PID namespace than ours, or on
another host, cannot be seen either.
"""

from __future__ import annotations

import os
import time

from gputrace.record.environment import FOLDER_VARIABLE
from gputrace.shards import process_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gputrace.shards import ShardFolder

_POLL_S = 0.01


def writers(folder: ShardFolder) -> set[int]:
    """The pids of the processes, other than this one, that may still write into the folder."""
    ours = _process(process_image("self"))
    numbers: dict[str, list[int]] = {}
    images: dict[str, str] = {}
    for number, image in folder.writers():
        process = _process(image)
        numbers.setdefault(process, []).append(number)
        images[process] = image
    return {
        pid_of(image)
        for process, image in images.items()
        if process != ours and _runs(image) and not _ended(folder, numbers[process])
    }


def wait_for_writers(folder: ShardFolder, timeout_s: float) -> None:
    """Wait until none may write any more, but not longer."""
    end_s = time.monotonic() + timeout_s
    try:
        while writers(folder) and time.monotonic() < end_s:
            time.sleep(_POLL_S)
    except OSError:
        pass  # the folder is gone or cannot be read: whoever reads it next says so


def heirs(folder: ShardFolder) -> set[int]:
    """The pids of all processes of ours, other than this one, that have the recording in their environment."""
    wanted = os.fsencode(f"{FOLDER_VARIABLE}={folder.path}")
    found = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdecimal() and int(name) != os.getpid() and wanted in _proc(name, "environ") and process_image(name):
            found.add(int(name))
    return found


def is_python(pid: int) -> bool:
    """Is the process a Python interpreter?"""
    return _executable(pid).startswith(("python", "pypy"))


def name(pid: int) -> str:
    """ "123 (train.py)": a process as a person knows it."""
    arguments = [os.fsdecode(argument) for argument in _proc(pid, "cmdline")]
    return f"{pid} ({_program(arguments) or _executable(pid) or 'ended since'})"


def pid_of(image: str) -> int:
    """The pid in what `process_image` says; 0 if it says nothing."""
    pid = image.partition(" ")[0]
    return int(pid) if pid.isdecimal() else 0


def _process(image: str) -> str:
    """The pid and start in what `process_image` says: exec leaves both."""
    return " ".join(image.split(" ", 2)[:2])


def _program(arguments: list[str]) -> str:
    """The script or module that a Python command line runs; else the command's own name."""
    if not arguments or not arguments[0]:
        return ""
    command = os.path.basename(arguments[0])
    if not command.startswith(("python", "pypy")):
        return command
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "-m":
            return next(rest, command)
        if argument == "-c":
            return command
        if argument in ("-W", "-X"):
            next(rest, None)
        elif argument and not argument.startswith("-"):
            return os.path.basename(argument)
    return command


def _runs(image: str) -> bool:
    now = process_image(pid_of(image))
    # Another user's executable may not be seen: its pid and start are enough then.
    return bool(now) and (now == image or (now.endswith(" ") and image.startswith(now)))


def _ended(folder: ShardFolder, numbers: list[int]) -> bool:
    """Has a process stopped its tracing? Its last image counts: one that went through exec never says so."""
    reports = [report for number in sorted(numbers) if (report := folder.report(number))]
    return bool(reports and reports[-1].get("ended"))


def _executable(pid: int) -> str:
    return os.path.basename(process_image(pid).partition(" ")[2].partition(" ")[2])


def _proc(pid: int | str, file: str) -> list[bytes]:
    """One of a process's files in /proc that holds strings; nothing if it has ended or is another user's."""
    try:
        with open(f"/proc/{pid}/{file}", "rb") as data:
            return data.read().split(b"\0")
    except OSError:
        return []
