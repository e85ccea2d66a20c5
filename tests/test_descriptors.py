"""The program closes every descriptor, and gives the numbers to files of its own, while a file of ours is opened."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputrace.descriptors import OUT_OF_THE_WAY, OwnFile, write_file

ROOT = Path(__file__).parents[1]
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

# Whatever the interpreter is about to do with a descriptor, it says so first, on the same thread: another one that
# closes everything cannot come at a worse time.
CLOSES_ALL_BEFORE = """
import os, sys
from gputrace.descriptors import write_file

folder, times, own = sys.argv[1], int(sys.argv[2]), []

def program(event, arguments):
    global times
    if event == "fcntl.fcntl" and times:
        times -= 1
        os.closerange(3, 1000)
        own[:] = [os.open(f"{folder}/own{n}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for n in range(20)]

sys.addaudithook(program)
for flags in os.O_APPEND, os.O_TRUNC:
    write_file(f"{folder}/ours", os.O_WRONLY | os.O_CREAT | flags, b"ours\\n")
for descriptor in own:
    os.write(descriptor, b"hello")
assert not times
"""


@pytest.mark.parametrize("times", [1, 5])
def test_a_program_that_closes_everything_and_opens_its_own(tmp_path: Path, times: int) -> None:
    command = [sys.executable, "-c", CLOSES_ALL_BEFORE, str(tmp_path), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert [path.read_bytes() for path in tmp_path.glob("own*")] == [b"hello"] * 20
    assert (tmp_path / "ours").read_bytes() == b"ours\n"


def test_the_number_is_out_of_the_program_s_way(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    file = OwnFile(f"{tmp_path}/x", APPEND)
    assert file.descriptor >= OUT_OF_THE_WAY
    assert not os.get_inheritable(file.descriptor)
    file.close()
    file.close()
    assert os.listdir("/proc/self/fd") == before


def test_a_descriptor_that_the_program_took_is_left_alone(tmp_path: Path) -> None:
    file = OwnFile(f"{tmp_path}/ours", APPEND)
    taken = os.open(f"{tmp_path}/program", APPEND)
    os.dup2(taken, file.descriptor)
    number = file.descriptor
    assert not file.ours()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.write(b"ours")
    file.close()
    os.write(number, b"program")
    os.close(number)
    os.close(taken)
    assert (tmp_path / "program").read_bytes() == b"program"
    assert (tmp_path / "ours").read_bytes() == b""


def test_appending_and_replacing(tmp_path: Path) -> None:
    for data in (b"first\n", b"second\n"):
        write_file(f"{tmp_path}/appended", APPEND, data)
        write_file(f"{tmp_path}/replaced", REPLACE, data)
    assert (tmp_path / "appended").read_bytes() == b"first\nsecond\n"
    assert (tmp_path / "replaced").read_bytes() == b"second\n"
    with pytest.raises(FileNotFoundError):
        write_file(f"{tmp_path}/gone/x", APPEND, b"x")


def test_a_process_that_may_have_few_descriptors(tmp_path: Path) -> None:
    program = f"""
import resource
from gputrace.descriptors import OwnFile
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
file = OwnFile({str(tmp_path / "x")!r}, {APPEND})
assert 3 <= file.descriptor < 64
file.write(b"x")
file.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100, cwd=ROOT)
    assert (tmp_path / "x").read_bytes() == b"x"


# The same trick: a thread of the program writes to each standard stream, all closed, as a file has just been opened.
WRITES_TO_STANDARD_STREAMS = """
import os, sys
from gputrace.descriptors import write_file

said = []

def program(event, arguments):
    if event == "fcntl.fcntl":
        for number in range(3):
            try:
                said.append(os.write(number, b"program"))
            except OSError:
                said.append(0)

os.closerange(0, 3)
os.chdir("/")
sys.addaudithook(program)
for _ in range(2):
    write_file(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, b"ours\\n")
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            continue
        os._exit(3)
os._exit(len(said) != 6)
"""


def test_it_is_no_standard_stream_meanwhile(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_TO_STANDARD_STREAMS, str(tmp_path / "ours")]
    assert subprocess.run(command, timeout=100, cwd=ROOT).returncode == 0
    assert (tmp_path / "ours").read_bytes() == b"ours\n" * 2
