"""An exception is an instant, once, where it is raised or comes to what is shown; its message is nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gputrace
from tests.engine import Engine, slices
from tests.hot.twin import TWINS
from tests.instrument.test_python_calls import run

monitored = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")


def marks(engine: Engine) -> list[tuple[str, str]]:
    """The instants, by time, each with the slice it is in."""
    names = {each.id: each.name for each in slices(engine)}
    rows = engine.query("select name, parent_id from slice where dur = 0 order by ts, id")
    return [(row["name"], names.get(row["parent_id"], "").removeprefix("__main__.")) for row in rows]


RAISES = """
import contextlib, functools, json, threading
class Odd(Exception):
    @property
    def __traceback__(self): raise RuntimeError("nobody is to ask")
class Named(type):
    @property
    def __name__(cls): raise RuntimeError("nobody is to ask")
class Metaclass(Exception, metaclass=Named): pass
def deep(n):
    if n: deep(n - 1)
    else: raise KeyError("secret")
def shows(kind, raiser):
    try: raiser()
    except kind as error: return error
def again(error):
    raise error
def handles():
    try:
        try: raise OSError("secret")
        finally: len("")
    except OSError: raise ValueError("secret") from None
def loops():
    def numbers():
        yield 1
        return 2
    list(numbers()); [each for each in numbers()]
    numbers_left = numbers(); next(numbers_left)
    try: next(numbers_left)
    except StopIteration: pass
    numbers_left = numbers(); next(numbers_left); numbers_left.close()
def library():
    json.loads("{")
def caught_there():
    {}.get("x"); getattr(1, "nothing", None); json.dumps({1: 2})
@contextlib.contextmanager
def around():
    yield
def within():
    with around(): raise LookupError
def main():
    kept = shows(KeyError, lambda: deep(5))
    shows(KeyError, lambda: again(kept))
    shows(ValueError, handles)
    loops()
    shows(ValueError, library)
    caught_there()
    shows(LookupError, within)
    shows(ZeroDivisionError, lambda: 1 / 0)
    def odd(): raise Odd()
    shows(Odd, odd)
    def metaclass(): raise Metaclass()
    shows(Metaclass, metaclass)
main()
threading.Thread(target=lambda: shows(EOFError, lambda: again(EOFError()))).start()
print("done")
"""


@pytest.mark.parametrize("twin", TWINS)
def test_an_exception_is_an_instant_once_where_it_is_raised(tmp_path: Path, twin: str) -> None:
    engine, done = run(tmp_path, RAISES, twin)
    assert (done.stdout, done.stderr.count("Traceback")) == ("done\n", 0)
    expected = [
        ("raise KeyError", "deep"),
        ("raise OSError", "handles"),
        ("raise ValueError", "handles"),
        ("raise JSONDecodeError", "library"),
        ("raise LookupError", "within"),
        ("raise ZeroDivisionError", "main.<locals>.<lambda>"),
        ("raise Odd", "main.<locals>.odd"),
        ("raise Metaclass", "main.<locals>.metaclass"),
        ("raise EOFError", "again"),
    ]
    assert marks(engine) == (expected if sys.version_info >= (3, 12) else [])
    assert "secret" not in str([(each.name, each.args) for each in slices(engine)])


@pytest.mark.parametrize("twin", TWINS)
def test_left_out_by_name(tmp_path: Path, twin: str) -> None:
    engine, _ = run(tmp_path, RAISES, twin, "--no-instrument", "python.exceptions")
    assert marks(engine) == []
    assert [each for each in slices(engine) if each.name == "__main__.handles"]


@monitored
def test_alone_and_of_chosen_modules(tmp_path: Path) -> None:
    def raises() -> None:
        try:
            raise KeyError("secret")
        except KeyError:
            pass

    instrument = ["python.exceptions"]
    with gputrace.trace(tmp_path / "a.pftrace", "host", instrument=instrument), gputrace.span("work"):
        raises()
    raises()
    engine = Engine(tmp_path / "a.pftrace")
    assert marks(engine) == [("raise KeyError", "work")]
    assert [each.name for each in slices(engine)] == ["work", "raise KeyError"]


@monitored
def test_a_tool_of_the_programs_sees_what_it_saw() -> None:
    import tempfile

    monitoring = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    seen: list[str] = []
    monitoring.use_tool_id(3, "the program's")
    try:
        monitoring.register_callback(3, monitoring.events.RAISE, lambda *raised: seen.append(type(raised[2]).__name__))
        monitoring.set_events(3, monitoring.events.RAISE)
        with tempfile.TemporaryDirectory() as folder:
            before = [monitoring.get_tool(each) for each in range(6)]
            with gputrace.trace(f"{folder}/a.pftrace", "host", instrument=["python.exceptions"]):
                assert "gputrace exceptions" in [monitoring.get_tool(each) for each in range(6)]
                seen.clear()
                try:
                    int("x")
                except ValueError:
                    pass
                assert seen == ["ValueError"]
            assert [monitoring.get_tool(each) for each in range(6)] == before
    finally:
        monitoring.set_events(3, 0)
        monitoring.register_callback(3, monitoring.events.RAISE, None)
        monitoring.free_tool_id(3)
