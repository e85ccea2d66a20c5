"""What a reader fails on misses its budget, and is there to be tried again: the seed, and the bytes."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks import fuzz

SEED = "7"


def fails_at_times(chance: random.Random, files: list[bytes], folder: Path) -> None:
    data = chance.randbytes(8)
    (folder / "trace").write_bytes(data)
    assert data[0] < 200, "it fails on these"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzz.READERS, "notes", ("notes", fails_at_times))


def ran(folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    fuzz.main("notes", SEED, "60", str(folder))
    tried, failure = json.loads(capfd.readouterr().out)
    return tried, failure


@pytest.mark.usefixtures("failing")
def test_it_stops_at_a_failure_and_a_seed_finds_it_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, again = ran(tmp_path / "first", capfd), ran(tmp_path / "again", capfd)
    assert first == again
    assert "it fails on these" in first[1]
    kept = (tmp_path / "first" / "given" / "trace").read_bytes()
    assert kept[0] >= 200
    assert (tmp_path / "again" / "given" / "trace").read_bytes() == kept


@pytest.mark.parametrize("died", [False, True])
def test_a_failure_misses_the_budget_and_what_it_was_given_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], died: bool
) -> None:
    """As well where the reader takes its process with it."""

    def in_child(module: str, reader: str, seed: str, seconds: str, folder: str, *, fake: bool) -> tuple[int, str]:
        Path(folder, "trace").write_bytes(b"these")
        if died:
            raise subprocess.CalledProcessError(-11, module)
        return 3, "AssertionError: it fails on these"

    monkeypatch.setattr(fuzz, "in_child", in_child)
    monkeypatch.setattr(fuzz.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    row = fuzz.fuzzed("notes", 7, 1.0)
    assert row.verdict == "over"
    assert row.aside == f"seed 7, kept in {tmp_path}"
    assert (tmp_path / "trace").read_bytes() == b"these"
    said = capfd.readouterr().err
    assert f"seed 7, what it was given is in {tmp_path}" in said
    assert ("died with" if died else "it fails on these") in said


def test_every_reader_takes_damaged_inputs_for_a_moment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for reader in fuzz.READERS:
        fuzz.main(reader, SEED, "0.2", str(tmp_path / reader))
        tried, failure = json.loads(capfd.readouterr().out)
        assert tried > 0
        assert failure == ""
