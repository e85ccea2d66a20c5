"""`gputrace merge`: make the trace of a recording that could not."""

from __future__ import annotations

import os

import click

from gputrace.cli.outcome import progress_bar, tell, tell_empty


@click.command(short_help="Join the shards an interrupted recording left.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The trace to write.")
@click.argument("folder", metavar="FOLDER")
def command(output: str, folder: str) -> int:
    """Join the shards in FOLDER, which a recording left behind because it was killed or could not write.

    FOLDER is hidden beside the trace that was asked for. It is removed once the new trace is there and every process of
    the recording has ended.
    """
    from gputrace.record.recording import recover

    old = os.path.exists(output)
    with progress_bar(lambda: False) as progress:
        summary = recover(folder, output, progress)
    if not summary.path:
        tell_empty(summary, output if old else "")
        return 1
    tell(summary, quiet=False)
    return 0
