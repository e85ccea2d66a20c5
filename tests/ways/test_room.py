"""Ways to end in which room runs out: on the disk, under a limit, in memory; and the output's folder removed.

A disk's quota is in test_quota.py: it takes a file system made for it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.missing import missing
from tests.ways.program import SUFFIXES, Ended, Program, assert_holds, assert_same_end, merged

pytestmark = pytest.mark.slow

IN_VAIN = """
for n in range(20_000):
    with gputrace.span("in vain", n=n):
        pass
sys.exit(3)
"""


class Disk(NamedTuple):
    """A small disk, in a mount namespace of its own."""

    inside: list[str]  # what a command line begins with, to run there
    view: Path  # the disk from outside


@contextlib.contextmanager
def mounted(folder: Path, script: str, *, as_user: bool) -> Iterator[Disk | str]:
    """What a shell script mounts on its first argument, or why it cannot. ``as_user``: with no privilege."""
    path = folder / "disk"
    path.mkdir()
    namespaces = ["--map-root-user", "--mount"] if as_user else ["--mount"]
    command = ["unshare", *namespaces, "sh", "-c", f"{script} && echo ready && read _", "sh", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        said = holder.stdout.readline()
        if said != b"ready\n":
            yield said.decode().strip()
            return
        entered = ["--user", "--mount", "--preserve-credentials"] if as_user else ["--mount"]
        enter = ["nsenter", f"--target={holder.pid}", *entered]
        view = Path(f"/proc/{holder.pid}/root{path}")
        # The current folder is found anew: the one we have is on the disk below.
        yield Disk([*enter, "sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder)], view)
        holder.stdin.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path, 'mount -t tmpfs -o size=2m tmpfs "$1"', as_user=True) as small:
        if isinstance(small, str):
            missing(f"no small disk can be mounted here: {small}")
        assert isinstance(small, Disk)
        assert 0 < shutil.disk_usage(small.view).total < 3 << 20
        yield small


#: Some file systems have a little room again once what was written has reached the disk.
FILL = """
words = set()
with open("disk/filler", "wb", buffering=0) as filler:
    for _ in range(10):
        try:
            for _ in range(1024):  # and no more, should the disk be another than the small one
                filler.write(os.urandom(4096))
        except OSError as error:
            words.add(error.strerror)
        os.fsync(filler.fileno())
print(*words, flush=True)
"""


def run_out_of_room(disk: Disk, folder: Path, suffix: str, words: str, *, in_file: bool = True) -> tuple[Ended, Ended]:
    """A program fills the disk and records in vain; ``words`` are the error's. Freed, a merge makes the trace.

    Returns how the program ended and how the merge did. ``in_file``: see `assert_holds`.
    """
    program = Program(FILL + IN_VAIN)
    plain = program.run([*disk.inside, *program.command(folder)], folder)
    assert (plain.code, plain.stdout) == (3, f"{words}\n".encode())
    free(disk)
    done = program.run([*disk.inside, *program.recording(folder, f"disk/t{suffix}")], folder)
    assert_same_end(done, plain)
    assert not (disk.view / f"t{suffix}").exists()
    assert f"cannot write FOLDER/disk/t{suffix}: {words}. " in done.said[-1]
    assert "gputrace merge" in done.said[-1]

    free(disk)
    (shards,) = disk.view.glob(".t.*")
    recovered = merged(folder, Path("disk") / shards.name, f"disk/t{suffix}", *disk.inside)
    assert recovered.code == 0
    assert_holds(disk.view / f"t{suffix}", open_at_end=True, clean=False, in_file=in_file)
    assert [each.name for each in disk.view.iterdir()] == [f"t{suffix}"]
    return done, recovered


def free(disk: Disk) -> None:
    """Some file systems hand room back with the next commit alone."""
    (disk.view / "filler").unlink()
    subprocess.run(["sync", "-f", str(disk.view)], check=True)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_disk_is_full(disk: Disk, tmp_path: Path, suffix: str) -> None:
    done, recovered = run_out_of_room(disk, tmp_path, suffix, "No space left on device")
    told = "could write no more: No space left on device. What it did from then on is missing"
    assert told in done.said[-1]
    assert told in recovered.said[0]
    assert "at least " in recovered.said[1]
    assert "killed" not in recovered.said[1]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_merged_from_a_full_disk_to_another(disk: Disk, tmp_path: Path, suffix: str) -> None:
    """All were killed there: what has to be drawn of their files finds no room beside them."""
    program = Program("os.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)")
    assert program.recorded(tmp_path, f"disk/t{suffix}", *disk.inside).code == -9
    (shards,) = disk.view.glob(".t.*")
    with contextlib.suppress(OSError), (disk.view / "filler").open("wb", buffering=0) as filler:
        while filler.tell() < 4 << 20:
            filler.write(bytes(4096))
    assert shutil.disk_usage(disk.view).free == 0
    before = {path.name for path in tmp_path.iterdir()}
    recovered = merged(tmp_path, Path("disk") / shards.name, f"t{suffix}", *disk.inside)
    assert recovered.code == 0, recovered.said
    assert_holds(tmp_path / f"t{suffix}", open_at_end=True, clean=False)
    assert {path.name for path in tmp_path.iterdir()} - before == {f"t{suffix}"}
    assert [each.name for each in disk.view.iterdir()] == ["filler"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_limit_on_a_file_s_size(tmp_path: Path, suffix: str) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    program = Program(limit + IN_VAIN)
    plain = program.plain(tmp_path)
    assert plain.code == 3
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, plain)
    assert "stopped: OSError: [Errno 27] File too large" in done.said[0]
    assert_holds(tmp_path / f"t{suffix}", open_at_end=True, clean=False)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_output_s_folder_is_removed(tmp_path: Path, suffix: str) -> None:
    program = Program('import shutil\nshutil.rmtree("out")\n' + IN_VAIN)
    (tmp_path / "out").mkdir()
    plain = program.plain(tmp_path)
    assert plain.code == 3
    (tmp_path / "out").mkdir()
    done = program.recorded(tmp_path, f"out/t{suffix}")
    assert_same_end(done, plain)
    assert f"cannot write FOLDER/out/t{suffix}: " in done.said[-1]
    assert "is gone, and what was recorded with it" in done.said[-1]
    assert not (tmp_path / "out").exists()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group whose processes may take 64 MB more."""
    for parent, limit in [
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ]:
        group = parent / f"gputrace-{uuid.uuid4().hex[:12]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(64 << 20))
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group for memory can be made here: SIGKILL in test_ends is the same end")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_killed_for_the_memory_it_took(memory_group: Path, tmp_path: Path, suffix: str) -> None:
    program = Program(f"""
open("{memory_group}/cgroup.procs", "w").write(str(os.getpid()))
taken = [b"x" * (1 << 20) for _ in range(2000)]
""")
    plain = program.plain(tmp_path)
    assert plain.code == -9
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, plain)
    assert_holds(tmp_path / f"t{suffix}", open_at_end=True, clean=False)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_refused(tmp_path: Path, suffix: str) -> None:
    """Python says so with an exception, and the program's way out of it is its own."""
    program = Program("""
import resource
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (32 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
taken = []
while True:
    with gputrace.span("taking"):
        taken.append(b"x" * (1 << 16))
""")
    plain = program.plain(tmp_path)
    assert plain.code == 1
    assert plain.stderr[-1] == "MemoryError"
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, plain)
    print(done.said)
    assert_holds(tmp_path / f"t{suffix}", open_at_end=False, clean=True)
