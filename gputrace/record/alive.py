"""Which processes of a recording still run, so that their shards are not taken away under them.

By what each process image noted when it took its shard: it knows its pid, its start and its executable, which together
no other process shares. Linux; elsewhere no process counts as running. One in another PID namespace than ours, or on
another host, cannot be seen either.
"""

from __future__ import annotations

import os
import time

from gputrace.record.advice import isolating_option
from gputrace.record.environment import FOLDER_VARIABLE
from gputrace.shards import process_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gputrace.shards import ShardFolder

_POLL_S = 0.01
#: A Python is at its first line within this, on the busiest machine; one that has no shard by then will never have one.
_YOUNG_S = 5.0
#: So long after the command, what it has forked becomes the Python that it is to be.
_EXEC_S = 0.1
#: An exec takes no longer than this, mostly.
_LOOK_S = 0.001


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


def wait_for_writers(folder: ShardFolder, timeout_s: float) -> list[str]:
    """Wait until none may write any more, nor is about to: for those that write not longer than that.

    Returns the names of Pythons that were on their way to their first line and ended before it: else nobody tells.
    """
    begun_s = time.monotonic()
    seen: dict[str, str] = {}  # names of Pythons without a shard
    try:
        coming = starting(folder)
        while True:
            waited_s = time.monotonic() - begun_s
            runs = {process: pid for process, pid in coming.items() if _process(process_image(pid)) == process}
            traced = {_process(image) for _, image in folder.writers()}  # after that: one that has ended is in it
            # The name it had first: it may be dying while it is looked at again.
            seen = {process: name(pid) for process, pid in runs.items() if _is_traced_python(pid)} | seen
            coming = {
                process: pid
                for process, pid in runs.items()
                if process not in traced and _may_still_come(pid, waited_s, timeout_s)
            }
            if not coming and (waited_s > timeout_s or not writers(folder)):
                return [named for process, named in seen.items() if process not in traced and process not in runs]
            time.sleep(_POLL_S)
    except OSError:
        return []  # the folder is gone or cannot be read: whoever reads it next says so


def starting(folder: ShardFolder) -> dict[str, int]:
    """The processes that began a moment ago under the recording and have no shard, with their pids: Pythons on their
    way to their first line, and what may yet become one. One that leaves gputrace out is none (-I, -E, -S).
    """
    traced = {_process(image) for _, image in folder.writers()}
    found = {_process(image): pid for pid in heirs(folder) if (image := process_image(pid)) and _is_young(image)}
    return {process: pid for process, pid in found.items() if process not in traced and not _is_isolated(pid)}


def heirs(folder: ShardFolder) -> set[int]:
    """The pids of all processes of ours, other than this one, that have the recording in their environment."""
    wanted = os.fsencode(f"{FOLDER_VARIABLE}={folder.path}")
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    unseen = {int(name) for name in names if name.isdecimal()} - {os.getpid()}
    found = set()
    end_s = time.monotonic() + _EXEC_S
    while unseen:
        environments = {pid: _proc(pid, "environ") for pid in unseen}
        found |= {pid for pid, environment in environments.items() if wanted in environment and process_image(pid)}
        if time.monotonic() > end_s:
            break
        unseen = {pid for pid, environment in environments.items() if environment == [b""] and _may_be_in_exec(pid)}
        if unseen:
            time.sleep(_LOOK_S)
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


def _may_still_come(pid: int, waited_s: float, timeout_s: float) -> bool:
    """Of a process without a shard: may it yet take one, as the Python it is or that it becomes by exec?"""
    if is_python(pid):
        image = process_image(pid)
        return bool(image) and _is_young(image) and not _is_isolated(pid)
    # On a busy machine it may not have had its turn.
    return waited_s < _EXEC_S or (waited_s < timeout_s and _state(pid) in ("R", "D"))


def _is_traced_python(pid: int) -> bool:
    """Will it run our `sitecustomize`? Within exec a process has no arguments to tell by."""
    return is_python(pid) and _proc(pid, "cmdline") != [b""] and not _is_isolated(pid)


def _is_isolated(pid: int) -> bool:
    """Does a Python leave gputrace out (-I, -E, -S)?"""
    return isolating_option([os.fsdecode(part) for part in _proc(pid, "cmdline")]) != ""


def _state(pid: int) -> str:
    """A process's state, as ps has it: "R" of one that runs or would; "" if there is none."""
    stat = b"\0".join(_proc(pid, "stat"))
    return os.fsdecode(stat[stat.rfind(b")") + 2 :][:1])


def _may_be_in_exec(pid: int) -> bool:
    """Of a process whose environment is empty: on its way through exec it has none for a moment."""
    image = process_image(pid)
    return not image.endswith(" ") and bool(image) and _is_young(image)


def _is_young(image: str) -> bool:
    """Did the process begin no longer than a moment ago?"""
    start = image.split(" ")[1]
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK")
    return age_s < _YOUNG_S


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
