"""Ways to end at a real quota (EDQUOT), on a btrfs made for it: as on a full disk; and no store finds its page gone.

btrfs holds everyone to a quota, root too, and gives no page that was reserved a second time: what is mapped from it and
stored into again may find no room (SIGBUS, which would be the program's end).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hot.twin import TWINS
from tests.ways.program import SUFFIXES
from tests.ways.test_ring_room import TOLD, assert_all_there, record
from tests.ways.test_room import Disk, mounted, run_out_of_room

pytestmark = pytest.mark.slow

WORDS = "Disk quota exceeded"
#: The image takes no room but what is written into it. A sub-volume of 2 MB is mounted in the file system's place.
MAKE = """
exec 2>&1
make() {
    truncate -s 128M "$1.image" && mkfs.btrfs -q -M "$1.image" && mount -o loop "$1.image" "$1" &&
        btrfs subvolume create "$1/limited" && btrfs quota enable "$1" && btrfs qgroup limit 2M "$1/limited" &&
        mount --bind "$1/limited" "$1"
}
said=$(make "$1") || { echo "$said" | tr '\\n' ' '; false; }"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path, MAKE, as_user=False) as small:
        if isinstance(small, str):
            why = (
                f"EDQUOT IS NOT TRIED HERE: no btrfs with a quota can be made ({small}). It takes root and btrfs-progs"
            )
            warnings.warn(why, stacklevel=1)  # the summary of a run shows it
            pytest.skip(why)
        yield small


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_at_a_quota(disk: Disk, tmp_path: Path, suffix: str) -> None:
    """Not even an empty file can be made there to note why it wrote no more: it is taken for killed, as is told."""
    _, recovered = run_out_of_room(disk, tmp_path, suffix, WORDS, in_file=False)
    assert "1 process ended without cleaning up" in recovered.said[-1]


@pytest.mark.skipif("compiled" not in TWINS, reason="the pure twin has no ring")
def test_the_ring_is_stored_into_again(disk: Disk, tmp_path: Path) -> None:
    """Once what was stored has reached the disk, the next store takes new room there: the ring lies elsewhere."""
    program = """
os.chdir('disk')
spans(0, 9000)
os.sync()
with open("filler", "wb", buffering=0) as filler:
    try:
        for _ in range(4096):
            filler.write(os.urandom(1024))
    except OSError as error:
        print(error.strerror, flush=True)
os.sync()
spans(9000, 18000)
os.unlink("filler")
os.sync()
sys.exit(3)
"""
    stdout, said = record(tmp_path, program, disk.inside, "disk/t.pftrace")
    assert stdout == f"{WORDS}\n".encode()
    assert said.count(TOLD) == 1, said
    assert "its output's file system copies on write" in said
    assert os.listdir(disk.view) == ["t.pftrace"]
    assert_all_there(disk.view / "t.pftrace", 18000)
