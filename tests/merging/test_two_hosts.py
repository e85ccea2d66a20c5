"""Two hosts on one machine: each with a network, a name, pids and clocks of its own, and real barriers between them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gputrace.merging.merge import Options, Outcome, merge
from tests.merging.making import Drawn
from tests.missing import missing
from tests.record.running import GPUTRACE

ROOT = Path(__file__).parents[2]
AHEAD_S = 1000
STEPS = 40
#: The clocks are a thousand seconds apart; a busy machine may hold a rank back for a while at any one barrier.
MOST_ERROR_NS = 50_000_000

RANK = """
import os, socket, time
import gputrace

rank = int(os.environ["RANK"])
if rank == 0:
    listening = socket.create_server(("10.9.0.1", 7000))
    peer, _ = listening.accept()
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection(("10.9.0.1", 7000), timeout=30)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
peer.settimeout(30)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for step in range(STEPS):
    with gputrace.span("barrier"):
        peer.sendall(b"x")
        assert peer.recv(1) == b"x"
    gputrace.instant("mark", wall_ns=time.time_ns())
    time.sleep(0.002 * (rank + 1))
"""

# The second host's network is held by a process; a pair of devices joins the two.
HOSTS = """
set -e
unshare -n sleep 60 & other=$!
trap 'kill $other' EXIT
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
ip link add va type veth peer name vb netns $other
ip addr add 10.9.0.1/24 dev va
ip link set va up
nsenter -t $other -n sh -c 'ip addr add 10.9.0.2/24 dev vb && ip link set vb up'
host() { unshare -u -p -f --mount-proc -T --boottime $2 --monotonic $2 sh -c "hostname node$1 && $3"; }
export WORLD_SIZE=2
RANK=0 host 0 0 "$1" & first=$!
export -f host
RANK=1 nsenter -t $other -n bash -c 'host 1 "$1" "$2"' - AHEAD "$1"
wait $first
"""


def _may_unshare() -> bool:
    script = "ip link add va type veth peer name vb && unshare -u -p -f --mount-proc -T --boottime 9 hostname x"
    return subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, timeout=30).returncode == 0


@pytest.mark.slow
def test_two_ranks_on_two_hosts(tmp_path: Path) -> None:
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        missing("ip, unshare or nsenter is not here: apt install iproute2 util-linux")
    if not _may_unshare():
        pytest.skip("needs the right to make namespaces")
    (tmp_path / "rank.py").write_text(RANK.replace("STEPS", str(STEPS)))
    record = f"{' '.join(GPUTRACE)} record --device host -o rank%r-%h.pftrace -- {sys.executable} rank.py"
    done = subprocess.run(
        ["unshare", "-n", "bash", "-c", HOSTS.replace("AHEAD", str(AHEAD_S)), "-", record],
        cwd=tmp_path,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    paths = [tmp_path / f"rank{n}-node{n}.pftrace" for n in range(2)]
    raw = [_offset(Drawn(path), f"rank {n} ") for n, path in enumerate(paths)]
    assert raw[0] - raw[1] == pytest.approx(AHEAD_S * 10**9, abs=MOST_ERROR_NS), "clocks of their own"
    for align in ("clock", "collectives"):
        outcome = _merged(tmp_path, paths, align)
        assert (outcome.problems, outcome.hosts) == ([], 2)
        drawn = Drawn(tmp_path / "all.pftrace")
        assert len(drawn.processes()) == 2, "their pids are the same, and are kept apart"
        assert abs(_offset(drawn, "rank 0 ") - _offset(drawn, "rank 1 ")) < MOST_ERROR_NS
    [alignment] = outcome.alignments
    assert alignment.fit is not None
    assert (alignment.fit.name, alignment.host.name) == ("barrier", "node1")


def _merged(tmp_path: Path, paths: list[Path], align: str) -> Outcome:
    return merge(tuple(map(str, paths)), str(tmp_path / "all.pftrace"), Options(align=align))


def _offset(drawn: Drawn, process: str) -> int:
    """The wall clock, which both have, less the timeline: the median of a rank's marks."""
    found = sorted(each.args["wall_ns"] - each.ts for each in drawn.named("mark") if each.track[0].startswith(process))
    assert len(found) == STEPS
    return found[STEPS // 2]
