"""A trace that is cut anywhere: it is told as `read` tells it, and the engine has all that `read` gives of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto
from hypothesis import given
from hypothesis import strategies as st

import gputrace
from gputrace.errors import InputError
from gputrace.model import SLICE
from gputrace.reading import torn
from gputrace.reading.stream import ByteStream
from gputrace.sql.find import WASM, open_engine
from tests.exporters.recordings import Script, write


def written(suffix: str) -> bytes:
    script = Script()
    names = ['say "]}"', "[{", "]", *(f"s{k}" for k in range(300))]
    script.add(script.thread(), *((k * 100, SLICE, name, None, 0, k * 100 + 50) for k, name in enumerate(names)))
    whole = write(Chrome if suffix.startswith(".json") else Perfetto, script)
    if suffix == ".json object":
        events = json.loads(whole)
        events = events["traceEvents"] if isinstance(events, dict) else events
        whole = json.dumps({"displayTimeUnit": "ns", "traceEvents": events, "more": {"x": [1]}}).encode()
    return gzip.compress(whole, mtime=0) if suffix.endswith(".gz") else whole


def loaded(path: Path) -> tuple[set[str], list[str]]:
    """The names of the slices that the engine has, and what was told."""
    told: list[str] = []
    with open_engine(str(path), WASM, told.append) as engine:
        return {str(name) for (name,) in engine.query("select name from slice where dur != 0").rows}, told


@pytest.mark.parametrize("suffix", [".pftrace", ".pftrace.gz", ".json", ".json.gz", ".json object"])
def test_what_is_before_the_cut_is_there(tmp_path: Path, suffix: str) -> None:
    whole = written(suffix)
    path = tmp_path / "t"
    path.write_bytes(whole)
    names, told = loaded(path)
    assert (len(names), told) == (303, [])
    for left in (len(whole) - 3, len(whole) * 2 // 3):
        path.write_bytes(whole[:left])
        names, told = loaded(path)
        read = gputrace.read(path)
        assert told == [str(problem) for problem in read.problems]
        assert [name for name in read.slices.names if name not in names] == []
        assert len(names) >= 150


@pytest.mark.parametrize("suffix", [".pftrace", ".pftrace.gz", ".json", ".json.gz", ".json object"])
def test_a_cut_before_the_first_event_leaves_no_empty_trace(tmp_path: Path, suffix: str) -> None:
    """At whatever byte: it is no trace, or something of it is there."""
    whole = written(suffix)
    path = tmp_path / "t"
    refused = 0
    for left in range(1, 1500):
        path.write_bytes(whole[:left])
        try:
            trace = gputrace.read(path)
        except InputError as error:
            refused += "beginning of a trace" in str(error) or "cut short" in str(error)
            continue
        assert len(trace.slices) > 0, left
    assert refused > 20


def test_a_trace_that_is_whole_may_be_empty(tmp_path: Path) -> None:
    for whole in (write(Perfetto, Script()), write(Chrome, Script()), b"[]", b'{"traceEvents": []}'):
        (tmp_path / "t").write_bytes(whole)
        trace = gputrace.read(tmp_path / "t")
        assert (len(trace.slices), trace.problems) == (0, [])


def test_an_array_may_stay_open(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('[{"ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1, "name": "a"},\n')
    assert loaded(tmp_path / "t") == ({"a"}, [])


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\[]{}\n,:'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a"\\[{'), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(alphabet='a"\\[{'), JSON, max_size=4), st.integers(1, 7), st.data())
def test_a_text_closes_at_its_end_alone(tmp_path_factory: Any, value: Any, piece: int, data: st.DataObject) -> None:
    """However it is cut into pieces, and whatever its strings hold."""
    path = tmp_path_factory.getbasetemp() / "closes.json"
    text = json.dumps(value, ensure_ascii=False).encode()
    left = data.draw(st.integers(1, len(text)))
    path.write_bytes(text[:left])
    with pytest.MonkeyPatch.context() as patch, ByteStream(str(path)) as stream:
        patch.setattr(torn, "PIECE_BYTES", piece)
        assert torn._closes(stream) == (left == len(text))


def test_what_is_torn_beyond_reading_is_an_error(tmp_path: Path) -> None:
    for suffix in (".pftrace.gz", ".json object"):
        (tmp_path / "t").write_bytes(written(suffix)[:25])
        with pytest.raises(InputError):
            loaded(tmp_path / "t")
