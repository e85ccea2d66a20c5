"""Ways to end in which room runs out: on the disk, under a limit, in memory; and the output's folder removed.

A limit on a file's size stands for a disk's quota: both make the same write fail, with EFBIG and with EDQUOT, but a
quota takes a file system made for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ways.program import SUFFIXES, Program, assert_holds, assert_same_end, merged

pytestmark = pytest.mark.slow

IN_VAIN = """
for n in range(20_000):
    with gputrace.span("in vain", n=n):
        pass
sys.exit(3)
"""


def missing(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


class Disk(NamedTuple):
    """A small disk, in a mount namespace of its own: no privilege is needed for that."""

    inside: list[str]  # what a command line begins with, to run there
    view: Path  # the disk from outside


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    hold = 'mount -t tmpfs -o size=2m tmpfs "$1" && echo ready && read _'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", hold, "sh", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        said = holder.stdout.readline()
        if said != b"ready\n":
            missing(f"no small disk can be mounted here: {said.decode()}")
        enter = ["nsenter", f"--target={holder.pid}", "--user", "--mount", "--preserve-credentials"]
        view = Path(f"/proc/{holder.pid}/root{path}")
        assert 0 < shutil.disk_usage(view).total < 3 << 20
        # The current folder is found anew: the one we have is on the disk below.
        yield Disk([*enter, "sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(tmp_path)], view)
        holder.stdin.close()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_disk_is_full(disk: Disk, tmp_path: Path, suffix: str) -> None:
    fill = """
with open("disk/filler", "wb", buffering=0) as filler:
    try:
        for _ in range(1024):  # and no more, should the disk be another than the small one
            filler.write(bytes(4096))
    except OSError as error:
        print(error.strerror, flush=True)
"""
    program = Program(fill + IN_VAIN)
    plain = program.run([*disk.inside, *program.command(tmp_path)], tmp_path)
    assert (plain.code, plain.stdout) == (3, b"No space left on device\n")
    (disk.view / "filler").unlink()
    done = program.run([*disk.inside, *program.recording(tmp_path, f"disk/t{suffix}")], tmp_path)
    assert_same_end(done, plain)
    assert not (disk.view / f"t{suffix}").exists()
    assert f"cannot write FOLDER/disk/t{suffix}: No space left on device. " in done.said[-1]
    assert "could write no more: No space left on device. What it did from then on is missing" in done.said[-1]
    assert "gputrace merge" in done.said[-1]

    (disk.view / "filler").unlink()
    (shards,) = disk.view.glob(".t.*")
    recovered = merged(tmp_path, Path("disk") / shards.name, f"disk/t{suffix}", *disk.inside)
    assert recovered.code == 0
    assert "could write no more: No space left on device. What it did from then on is missing" in recovered.said[0]
    assert "at least " in recovered.said[1]
    assert "killed" not in recovered.said[1]
    assert_holds(disk.view / f"t{suffix}", open_at_end=True, clean=False)
    assert [each.name for each in disk.view.iterdir()] == [f"t{suffix}"]


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
