"""A test that runs elsewhere ends as it would have here."""

from __future__ import annotations

import os

import pytest

from tests.fake_driver import on_fake_driver


@on_fake_driver()
def skips() -> None:
    pytest.skip("not today")


@on_fake_driver()
def fails() -> None:
    print("a clue")
    assert [1] == [2]


@on_fake_driver()
def dies() -> None:
    os._exit(7)


@pytest.mark.parametrize(
    ("test", "outcome", "text"),
    [
        (skips, pytest.skip.Exception, "not today"),
        (fails, pytest.fail.Exception, r"assert \[1\] == \[2\][^$]*a clue"),
        (dies, pytest.fail.Exception, r"died \(exit code 7\)"),
    ],
)
def test_outcomes(test: object, outcome: type[BaseException], text: str) -> None:
    with pytest.raises(outcome, match=text):
        test()  # type: ignore[operator]


@on_fake_driver(skew_ppm=3)
def test_settings_reach_the_driver() -> None:
    from tests.fake_driver import control

    assert control.get("skew_ppm") == 3
    control.set(skew_ppm=4)


@on_fake_driver()
def test_and_stay_with_their_test() -> None:
    from tests.fake_driver import control

    assert control.get("skew_ppm") == 0
