"""Which rank of a distributed run this process is, and what an output's name makes of it.

It reads a few numbers that launchers (torchrun, srun, mpirun, PMI) put into the environment, and nothing else of it. A
traced program pays for this import.
"""

from __future__ import annotations

import os

from gputrace.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

# By launcher, its rank first: the first launcher that states a rank is believed, as a rank within srun that torchrun
# started has both and torchrun's is what the program goes by.
_LAUNCHERS: Final = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "", ""),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)

#: Each rank's shard numbers begin so far from the last rank's, so that traces of one run mostly merge as they are.
NUMBERS_A_RANK: Final = 64
_MOST_RANKS: Final = (1 << 19) // NUMBERS_A_RANK


class Rank:
    """A process's place in a run: ``rank`` of ``world_size``, ``local_rank`` on its host; -1 where it is not stated."""

    __slots__ = ("local_rank", "rank", "world_size")

    def __init__(self, rank: int, local_rank: int = -1, world_size: int = -1) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size

    def facts(self) -> dict[str, int]:
        """What is stated, by name, for a trace's metadata."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) >= 0}

    @property
    def first_number(self) -> int:
        """Where the shard numbers of a recording of this rank alone begin."""
        return self.rank * NUMBERS_A_RANK if self.rank < _MOST_RANKS else 0


def identity(environment: Mapping[str, str] | None = None) -> Rank | None:
    """The rank that ``environment`` (the process's own if None) states; None if none does. Raises nothing."""
    variables = os.environ if environment is None else environment
    for launcher in _LAUNCHERS:
        rank, local_rank, world_size = (_number(variables.get(name, "")) for name in launcher)
        # A single process under a batch system has SLURM_PROCID=0 and is no rank of anything.
        if rank >= 0 and (world_size != 1 or rank > 0):
            return Rank(rank, local_rank, world_size)
    return None


def hostname() -> str:
    """The host's name, without its domain."""
    return os.uname().nodename.partition(".")[0]


def process_name(rank: Rank, pid: int) -> str:
    """What a rank's processes are called in a trace: "rank 3 · host · pid"; "rank 03" where there are more than ten."""
    # Perfetto's UI goes by no sort index. What it knows no other difference of, it sorts by name, letter by letter.
    width = len(str(rank.world_size - 1)) if rank.world_size > 0 else 1
    return f"rank {rank.rank:0{width}} · {hostname()} · {pid}"


def expand(output: str, rank: Rank | None = None) -> str:
    """``output`` with %r (rank; 0 without one), %h (host), %p (pid) filled in; %% is a percent sign.

    Raises `UsageError` for any other.
    """
    if "%" not in output:
        return output
    values = {"r": str(rank.rank if rank else 0), "h": hostname(), "p": str(os.getpid()), "%": "%"}
    out, rest = "", output
    while rest:
        before, percent, rest = rest.partition("%")
        out += before
        if percent:
            if rest[:1] not in values:
                raise UsageError(
                    f"{output}: %{rest[:1]} stands for nothing: %r is the rank, %h the host, %p the pid, and %% a %"
                )
            out, rest = out + values[rest[0]], rest[1:]
    return out


def with_rank(output: str, rank: Rank) -> str:
    """``output`` with the rank before its suffix: "trace.pftrace.gz" becomes "trace.rank3.pftrace.gz"."""
    stem, suffix = os.path.splitext(output)
    if suffix.lower() == ".gz":
        stem, inner = os.path.splitext(stem)
        suffix = inner + suffix
    return f"{stem}.rank{rank.rank}{suffix}"


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 9 else -1
