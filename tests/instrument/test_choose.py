"""Which patches are applied: by default, by name, by the environment, and what a wrong name is told."""

from __future__ import annotations

import pytest

from gputrace.errors import UsageError
from gputrace.instrument import registry
from gputrace.instrument.registry import Patch, choose


@pytest.fixture(autouse=True)
def patches(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Patch("frame.modules", "frame", "a:b", value="how deep"),
        Patch("frame.ops", "frame", "a:b", default=False),
        Patch("other.calls", "other", "a:b"),
        Patch("frame.late", "frame", "a:b", default=False, needs="frame.modules"),
    ]
    monkeypatch.setattr(registry, "PATCHES", {row.name: row for row in rows})
    monkeypatch.delenv(registry.ADD_VARIABLE, raising=False)
    monkeypatch.delenv(registry.LEAVE_OUT_VARIABLE, raising=False)


def test_by_default_those_that_cost_little() -> None:
    assert choose() == ["frame.modules", "other.calls"]


def test_a_frameworks_name_is_all_of_it() -> None:
    assert choose(["frame"]) == ["frame.modules", "frame.ops", "other.calls", "frame.late"]
    assert choose(leave_out=["frame"]) == ["other.calls"]
    assert choose(only=["frame"]) == ["frame.modules", "frame.ops", "frame.late"]


def test_several_names_in_one() -> None:
    assert choose(leave_out=["frame.modules,other"]) == []
    assert choose(["frame.ops"], ["frame.modules", "other.calls"]) == ["frame.ops"]


def test_a_number_goes_with_its_name() -> None:
    assert choose(["frame.modules=3"]) == ["frame.modules=3", "other.calls"]


def test_the_environment_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.ADD_VARIABLE, "frame.ops")
    monkeypatch.setenv(registry.LEAVE_OUT_VARIABLE, "other frame.modules")
    assert choose() == ["frame.ops"]
    assert choose(only=["other"]) == ["other.calls"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("frame.module", "there is no instrument 'frame.module'; did you mean 'frame.modules'?"),
        ("zzz", "there is no instrument 'zzz': there are frame.modules, frame.ops, other.calls, frame.late"),
        ("frame.modules=deep", "'frame.modules=deep': behind 'frame.modules' may stand a whole number, how deep"),
        ("frame.ops=3", "'frame.ops=3': behind 'frame.ops' may stand nothing"),
    ],
)
def test_a_wrong_name_is_told_the_nearest(word: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose([word])
    assert str(refused.value) == told


def test_one_without_what_it_needs_is_told_and_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "^frame.late shows nothing without frame.modules, whose notes it goes by: have both, or neither$"
    assert choose(["frame.late"]) == ["frame.modules", "other.calls", "frame.late"]
    assert choose(["frame.late"], ["frame"]) == ["other.calls"]
    with pytest.raises(UsageError, match=told):
        choose(["frame.late"], ["frame.modules"])
    with pytest.raises(UsageError, match=told):
        choose(only=["frame.late"])
    monkeypatch.setenv(registry.LEAVE_OUT_VARIABLE, "frame.modules")
    with pytest.raises(UsageError, match=told):
        choose(["frame.late"])
