"""Chrome's JSON in every shape it is found in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputrace.errors import InputError
from gputrace.reading import chrome
from gputrace.reading.chrome import ChromeReader, time_ns
from gputrace.reading.stream import ByteStream, Limits

EVENTS: list[dict[str, Any]] = [
    {
        "ph": "X",
        "name": "a, {b} [c] \"d\" \\ 'é'",
        "ts": 1.5,
        "dur": 2,
        "args": {"x": [{"y": 1}, {"z": [2, 3]}], "s": "},{"},
    },
    {"ph": "i", "name": "", "ts": 0},
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "\u2028 ]}"}},
]


def read(path: Path, limits: Limits | None = None) -> tuple[list[Any], ChromeReader]:
    with ByteStream(str(path), limits) as stream:
        reader = ChromeReader(stream)
        return [event for batch in reader.batches() for event in batch], reader


def of(tmp_path: Path, text: str | bytes) -> tuple[list[Any], ChromeReader]:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path)


@pytest.fixture(params=[64, 1_000, 1 << 20])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes read at a time: small ones cut every token somewhere."""
    monkeypatch.setattr(chrome, "PIECE_BYTES", request.param)
    return int(request.param)


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("times", [0, 1, 300])
def test_both_forms(tmp_path: Path, piece: int, indent: int | None, times: int) -> None:
    events = EVENTS * times
    assert of(tmp_path, json.dumps(events, indent=indent))[0] == events
    found, reader = of(tmp_path, json.dumps({"a": {"b": [1]}, "traceEvents": events, "z": "}"}, indent=indent))
    assert found == events
    assert reader.facts == {"a": {"b": [1]}, "z": "}"}
    assert reader.notes == []


def test_a_line_an_event_and_no_end(tmp_path: Path, piece: int) -> None:
    text = "[\n" + ",\n".join(map(json.dumps, EVENTS * 50))
    for end in ("\n]\n", "", ",", ",\n", "]"):
        found, reader = of(tmp_path, text + end)
        assert found == EVENTS * 50
        assert reader.notes == []


def test_torn_anywhere(tmp_path: Path, piece: int) -> None:
    text = json.dumps({"traceEvents": EVENTS * 20, "more": 1}).encode()
    begin = text.index(b"[")
    for cut in range(begin + 1, len(text), 7):
        found, reader = of(tmp_path, text[:cut])
        assert found == (EVENTS * 20)[: len(found)]
        assert len(found) >= json.dumps(EVENTS * 20)[: cut - begin].count('"ph"') - 1
        assert len(reader.notes) == 1
        assert "on it is cut short" in reader.notes[0]


def test_one_bad_event_costs_no_other(tmp_path: Path, piece: int) -> None:
    bad = ['{"ph": nope}', '{"ph": "X",, "ts": 1}', "[" * 3_000 + "]" * 3_000, "17", '"text"']
    for text in bad:
        whole = ", ".join([json.dumps(EVENTS[0]), text, *map(json.dumps, EVENTS * 40)])
        found, reader = of(tmp_path, f"[{whole}]")
        assert found == [EVENTS[0], *EVENTS * 40], text
        assert reader.skipped == 1
        assert all(note.startswith("the event at byte ") for note in reader.notes)
        assert bool(reader.notes) == text.startswith(("{", "["))


def test_lenient_where_others_are(tmp_path: Path) -> None:
    found, reader = of(tmp_path, b'[{"name": "\xff\xfe", "ts": 1, "v": NaN}, {"name": "a\tb", "ts": 2}]')
    assert found[0]["name"] == "\ufffd\ufffd"
    assert found[1]["name"] == "a\tb"
    assert reader.notes == []
    assert of(tmp_path, b'\xef\xbb\xbf [ {"ts": 1} ]')[0] == [{"ts": 1}]


def test_not_events(tmp_path: Path) -> None:
    for text in ('{"a": 1}', "{}", '{"traceEvents": 5}', '{"traceEvents": {"a": []}}'):
        with pytest.raises(InputError, match='holds no "traceEvents"'):
            of(tmp_path, text)


def test_a_value_without_end_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'[{"name": "' + b"x" * (8 << 20))
    with pytest.raises(InputError, match="one value takes over 4,194,304 bytes"):
        read(path, Limits(most_record_bytes=4 << 20))


def test_large_members_beside_the_events_are_passed_over(tmp_path: Path) -> None:
    text = json.dumps({"stack": {"x": "y" * (2 << 20)}, "traceEvents": EVENTS, "tail": 1})
    found, reader = of(tmp_path, text)
    assert found == EVENTS
    assert reader.facts == {"tail": 1}


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (0, 0),
        (1.0005, 1000),
        (12.345, 12_345),
        (-3.25, -3_250),
        (5324074586675.619, 5_324_074_586_675_619),
        ("1790000000123456.789", 1_790_000_000_123_456_789),
        ("17", 17_000),
        ("1.0005", 1_001),
        ("-0.001", -1),
        ("1e3", None),
        ("", None),
        (None, None),
        (True, None),
        ([1], None),
        (float("nan"), None),
        (1e300, None),
        (1 << 70, None),
    ],
)
def test_times_in_ns(value: Any, ns: int | None) -> None:
    assert time_ns(value) == ns


def test_long_times_keep_their_digits(tmp_path: Path) -> None:
    found, _ = of(tmp_path, '[{"ts": 1790000000123456.789, "dur": 1.5}, {"ts":1790000000123457.001}]')
    assert [time_ns(event["ts"]) for event in found] == [1_790_000_000_123_456_789, 1_790_000_000_123_457_001]


@pytest.mark.parametrize("ts", ["1.5", "1790000000123456.789"])
def test_long_durations_keep_their_digits(tmp_path: Path, ts: str) -> None:
    found, _ = of(tmp_path, f'[{{"args": {{"of": 1790000000123456.5}}, "ts": {ts}, "dur" : 1790000000123456.789}}]')
    assert time_ns(found[0]["dur"]) == 1_790_000_000_123_456_789


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 60), 1 << 60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),  # halves of characters, too, which JSON can spell
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    events=st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=12),
    facts=st.dictionaries(st.text(max_size=5).filter(lambda key: key != "traceEvents"), JSON, max_size=3),
    indent=st.sampled_from([None, 0, 3]),
    ascii=st.booleans(),
)
def test_any_trace(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], facts: dict[str, Any], indent: int | None, ascii: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "t.json"
    text = json.dumps({**facts, "traceEvents": events}, indent=indent, ensure_ascii=ascii)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome, "PIECE_BYTES", 97)
        found, reader = read(path)
    meant = json.loads(path.read_bytes().decode("utf-8", "replace"))
    clean = json.loads(re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(meant, ensure_ascii=False)))
    assert found == clean["traceEvents"]
    del clean["traceEvents"]
    assert reader.facts == clean
