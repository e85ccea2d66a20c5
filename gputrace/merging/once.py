"""Each content once: of traces that hold the same, by the ids of the recordings in them, which are merged.

A trace of ours states its recording's id, a merged one those of all it was made of; of any other tool's the bytes are
all there is to go by. It reads nothing: surveys say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputrace.reading import recognise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputrace.merging.survey import Survey

#: Facts of a merged trace: the contents of all it was made of, and those of which it has a part alone.
HOLDS, PARTS = "holds", "holds_parts"


def held_by(surveys: Iterable[Survey]) -> dict[str, list[str]]:
    """What a trace merged of these states of its contents, by the facts' names."""
    contents: set[str] = set()
    parts: set[str] = set()
    for survey in surveys:
        contents |= survey.contents
        parts |= survey.parts
    return {HOLDS: sorted(contents), PARTS: sorted(parts)}


def once(surveys: list[Survey], problems: list[str]) -> list[Survey]:
    """Those that are to be merged so that nothing is drawn twice; of the others ``problems`` says why they are not.

    Of several traces of one recording it is the largest: the others are of fewer of its shards, or in another format. A
    merged trace yields to what it was made of where all of that is here, as that can be lined up anew.
    """
    best: dict[str, Survey] = {}
    for survey in surveys:
        if not survey.is_merge:
            [content] = survey.contents
            if content not in best or _worth(survey) > _worth(best[content]):
                best[content] = survey
    holders, left_out = _holders(surveys, best)
    kept = []
    for survey in surveys:
        why = left_out.get(survey.path, "") if survey.is_merge else _why_not(survey, best, holders)
        if why:
            problems.append(f"{survey.path}: {why}")
        else:
            kept.append(survey)
    return kept


def _holders(surveys: list[Survey], best: dict[str, Survey]) -> tuple[dict[str, Survey], dict[str, str]]:
    """Of each content, the merged trace that it is taken from; and why others of them are left out, by path."""
    here = {content for content, survey in best.items() if not survey.parts}
    holders: dict[str, Survey] = {}
    left_out: dict[str, str] = {}
    for survey in sorted(surveys, key=lambda s: -len(s.contents)):
        if not survey.is_merge:
            continue
        shared = survey.contents & holders.keys()
        others = _named(holders[content] for content in sorted(shared))
        if survey.contents <= here | (survey.parts & best.keys()):
            left_out[survey.path] = "all that it was merged of is here too, and is merged instead"
        elif shared == survey.contents:
            left_out[survey.path] = f"all that is in it is in {others} too, so it is merged once"
        elif shared:
            left_out[survey.path] = (
                f"some of what is in it is in {others} too and would be drawn twice, so it is left out: merge what the "
                "two were made of instead"
            )
        else:
            holders.update(dict.fromkeys(survey.contents, survey))
    return holders, left_out


def _why_not(survey: Survey, best: dict[str, Survey], holders: dict[str, Survey]) -> str:
    [content] = survey.contents
    if holder := holders.get(content):
        part = ""
        if content in holder.parts and not survey.parts:
            part = ", as far as it had come when that was made: for all of it, merge again what that was made of"
        return f"it is in {holder.path} already, so it is merged once{part}"
    if best[content] is survey:
        return ""
    same = "is of the same recording as" if survey.recording else "holds the same as"
    return f"{same} {best[content].path}, which is merged instead"


def _worth(survey: Survey) -> tuple[bool, bool, int]:
    return survey.whole, survey.kind == recognise.PERFETTO, survey.size


def _named(surveys: Iterable[Survey]) -> str:
    return " and ".join(dict.fromkeys(survey.path for survey in surveys))
