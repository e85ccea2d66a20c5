"""One trace read and worked on, wherever that happens: what came of it, or why nothing did, in a form that travels."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gputrace.errors import InputError
from gputrace.remote import Remote, to_open

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gputrace.table.trace import Trace

    #: What is done with each trace. It and what it returns can be pickled.
    Work = Callable[[Trace], Any]
    #: A file, and what is done with it.
    Job = tuple[str, Work]

#: Of what could not be read of a trace, so many are told, and the count of the rest.
_TOLD = 5
#: What a trace elsewhere is taken for.
_REMOTE_BYTES = 8 << 20


@dataclass
class Done:
    """``result`` is the work's; None, with why in ``failure``, where the trace could not be read. ``told`` are lines on
    what of it could not.
    """

    result: Any = None
    failure: str = ""
    told: list[str] = field(default_factory=list)


def do(file: str, work: Work) -> Done:
    from gputrace.table.read import read

    try:
        trace = read(file)
    except InputError as error:
        return Done(failure=str(error))
    except OSError as error:
        return Done(failure=f"{file}: {error.strerror}")
    return Done(work(trace), told=problems_of(trace))


def problems_of(trace: Trace) -> list[str]:
    """Lines on what could not be read of a trace."""
    lines = [str(problem) for problem in trace.problems[:_TOLD]]
    if len(trace.problems) > _TOLD:
        lines.append(f"{trace.path}: and {len(trace.problems) - _TOLD:,} more that cannot be read as they stand")
    return lines


def do_all(jobs: Sequence[Job]) -> list[Done]:
    return [do(file, work) for file, work in jobs]


def size_of(file: str) -> int:
    """Its size in bytes, as far as it can be told without asking over a network."""
    if isinstance(file, Remote):
        return _REMOTE_BYTES
    try:
        return os.path.getsize(to_open(file))
    except OSError:
        return 0  # whoever reads it says so
