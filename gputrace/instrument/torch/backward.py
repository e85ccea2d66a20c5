"""`torch.backward`: a slice for each stretch of a backward pass in which one module's nodes run, nested as modules are.

`torch.modules` notes which numbers torch gave to the nodes of its graph made inside each call of a module; the callback
in C++ (`observer`) says which node runs. Graph, tensors and modules are left as they are. It knows no operator.
"""

from __future__ import annotations

from _bisect import bisect_left
from _thread import _local
from _weakref import ref
from itertools import count

from gputrace import hot
from gputrace.fence import let_through
from gputrace.instrument.torch import observer, prepare, streams
from gputrace.model import FLOW, Flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: Stretches of numbers kept of one thread: two a call of a module. Of a graph that is older, no module is known.
MOST_STRETCHES: Final = 1 << 15
#: Threads beyond which those that are gone are forgotten.
MOST_THREADS: Final = 64
_NO_END: Final = (1 << 63) - 1
_flows = count(1 << 43)


def backward(site: Site) -> None:
    """Show what each module's backward takes, named by its path, as "GPT.layers.3.attn (backward)"."""
    global _modules
    torch = site.module
    prepare(site, torch)
    library = observer.load(torch)
    modules = Modules(
        site,
        torch._C._autograd._get_sequence_nr,
        library.gputrace_thread,
        library.gputrace_look_again,
        torch.is_grad_enabled,
    )
    site.swap(torch.autograd.graph._engine_run_backward, lambda *_, **__: _Pass(modules))
    methods = (Modules.moved, Modules.state, Modules.begin_pass, Modules.end_pass, _Call.__enter__, _Call.__exit__)
    if site.on_code is not None:
        for method in (
            _moved,
            *methods,
            Modules.call,
            _Call.around,
            _Call.backward,
            _Thread.mark,
            _Pass.__enter__,
            _Pass.__exit__,
        ):
            site.on_code(method.__code__, wrapper=False)
    handle = int(library.gputrace_watch_nodes(_moved))
    _modules = modules

    def stop() -> bool:
        global _modules
        _modules = None
        library.gputrace_stop_nodes(handle)
        return True

    site.undo_with(stop)


def call_of(name: str, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    """A call of a module that begins, whose `_Call.around` is to stand around it; None where nobody asks for it."""
    return None if _modules is None else _modules.call(name, kind, args, kwargs)


def _moved(forward_thread: int, number: int) -> tuple[int, int] | None:
    """What the callback calls. It is never let go of there, and so holds nothing of a recording."""
    modules = _modules
    return None if modules is None else modules.moved(forward_thread, number)


class _Call:
    """A call of a module: around it as it runs, and what nodes made inside belong to."""

    __slots__ = ("_flow", "_modules", "_span", "device", "kind", "name", "parent")

    def __init__(self, modules: Modules, name: str, kind: str, device: int | None, flow: Flow | None) -> None:
        self._modules = modules
        self._span: Any = None
        self._flow = flow
        self.name = name
        self.kind = kind
        self.device = device
        self.parent: _Call | None = None

    def around(self, name: str, stream: int | None, facts: dict[str, Any]) -> _Call:
        """The block around the forward, which shows it as this span."""
        if self._flow is not None:
            facts[FLOW] = self._flow
        self._span = hot.span(name, stream, **facts)
        return self

    def backward(self) -> Any:
        """A span for a stretch of its backward. The first one's slice is where the arrow from the forward leads."""
        facts: dict[str, Any] = {"class": self.kind}
        flow, self._flow = self._flow, None
        if flow is not None:
            facts[FLOW] = flow
        return hot.span(f"{self.name} (backward)", streams.of_device(self.device), **facts)

    def __enter__(self) -> Any:
        entered = self._span.__enter__()
        try:
            thread = self._modules.state()
            self.parent = thread.current
            thread.mark(self._modules.number(), self)
            thread.current = self
        except Exception as error:
            let_through(error)
            self._modules.site.fail(error)
        return entered

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        span, self._span = self._span, None
        try:
            thread = self._modules.state()
            thread.current = self.parent
            thread.mark(self._modules.number(), self.parent)
        except Exception as fault:
            let_through(fault)
            self._modules.site.fail(fault)
        span.__exit__(kind, error, trace)


class _Thread:
    """One thread: whose nodes it made, and what it runs of backward passes.

    ``stretches``: (number, the call that nodes from it on belong to) in order, up to the next one's number. ``open``:
    (call, span) of what it runs, outermost first; those below ``floor`` are of passes that wait for one inside them.
    """

    __slots__ = ("__weakref__", "current", "floor", "open", "passes", "stretches")

    def __init__(self) -> None:
        self.current: _Call | None = None
        self.stretches: list[tuple[int, _Call | None]] = [(0, None)]
        self.open: list[tuple[_Call, Any]] = []
        self.floor = self.passes = 0

    def mark(self, number: int, call: _Call | None) -> None:
        """Nodes from this number on belong to this call. One list, so that others look things up in it meanwhile."""
        stretches = self.stretches
        last, owner = stretches[-1]
        if owner is call:
            return
        if last == number:
            stretches[-1] = (number, call)
            return
        if len(stretches) >= MOST_STRETCHES:
            del stretches[: MOST_STRETCHES // 2]
        stretches.append((number, call))

    def close(self, down_to: int, error: tuple[Any, Any, Any] = (None, None, None)) -> None:
        while len(self.open) > down_to:
            self.open.pop()[1].__exit__(*error)


class _Alive:
    """Dies with its thread."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self, thread: _Thread) -> None:
        self.thread = thread


class Modules:
    """Whose node runs: from calls of modules to slices.

    ``number()`` is what torch gives to the next node of the calling thread, ``name_of_thread()`` what its nodes name it
    by, ``look_again()`` has `moved` be called at the next node of every thread, ``makes_graphs()`` says whether what
    this thread does now may have a backward.
    """

    def __init__(self, site: Site, number: Any, name_of_thread: Any, look_again: Any, makes_graphs: Any) -> None:
        self.site = site
        self._makes_graphs = makes_graphs
        self.number = number
        self._name_of_thread = name_of_thread
        self._look_again = look_again
        self._threads: dict[int, tuple[Any, _Thread]] = {}  # by what nodes name them by
        self._local = _local()
        self._under_way: set[_Thread] = set()  # threads that wait for a pass of theirs

    def call(self, name: str, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        flow = Flow(next(_flows)) if self._makes_graphs() else None
        return _Call(self, name, kind, streams.device_of((*args, *kwargs.values())), flow)

    def state(self) -> _Thread:
        """The calling thread's."""
        try:
            thread: _Thread = self._local.alive.thread
        except AttributeError:
            thread = _Thread()
            self._local.alive = alive = _Alive(thread)
            if len(self._threads) >= MOST_THREADS:
                for key, (alive_there, _) in list(self._threads.items()):
                    if alive_there() is None:
                        self._threads.pop(key, None)
            self._threads[self._name_of_thread()] = ref(alive), thread
        return thread

    def moved(self, forward_thread: int, number: int) -> tuple[int, int] | None:
        """A node begins that a thread made: draw whose it is. Returns between which numbers the answer stays the same.

        Called with the GIL, on the thread that runs it.
        """
        if self.site.broken:
            return None
        if not self._under_way:
            return 0, _NO_END  # a pass that is none of Python's: nobody would say when it ends
        try:
            begin, call, end = self._find(forward_thread, number)
            self._show(call)
            return begin, end
        except Exception as error:
            let_through(error)
            self.site.fail(error)
            return None

    def _find(self, forward_thread: int, number: int) -> tuple[int, _Call | None, int]:
        found = self._threads.get(forward_thread)
        if found is not None:
            stretches = found[1].stretches
            at = bisect_left(stretches, (number + 1,))
            here = stretches[at - 1 : at + 1] if at else []
            if here and here[0][0] <= number and (len(here) == 1 or number < here[1][0]):
                return *here[0], here[1][0] if len(here) > 1 else _NO_END
        return number, None, number + 1

    def _show(self, call: _Call | None) -> None:
        """Close what is open here and not around this call, and open what is around it."""
        path: list[_Call] = []
        each = call
        while each is not None:
            path.append(each)
            each = each.parent
        path.reverse()
        thread = self.state()
        at = thread.floor
        for each in path:
            if at == len(thread.open) or thread.open[at][0] is not each:
                break
            at += 1
        thread.close(at)
        for each in path[at - thread.floor :]:
            span = each.backward()
            span.__enter__()
            thread.open.append((each, span))
        # What a pass makes that is itself to be differentiated belongs to the module that it differentiates.
        thread.mark(self.number(), call)

    def begin_pass(self) -> int:
        """A pass begins, maybe inside a node of another one. Returns what `end_pass` is to be given."""
        thread = self.state()
        floor, thread.floor = thread.floor, len(thread.open)
        thread.passes += 1
        self._under_way.add(thread)
        self._look_again()
        return floor

    def end_pass(self, floor: int, error: tuple[Any, Any, Any]) -> None:
        thread = self.state()
        thread.close(thread.floor, error)
        thread.floor = floor
        thread.passes -= 1
        if not thread.passes:
            self._under_way.discard(thread)
        thread.mark(self.number(), thread.open[-1][0] if thread.open else thread.current)
        if not self._under_way:
            for _, other in list(self._threads.values()):  # the engine's own, which no pass ends
                other.close(0, error)
        self._look_again()


class _Pass:
    """Around one run of torch's engine."""

    __slots__ = ("_floor", "_modules")

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._floor: int | None = None

    def __enter__(self) -> _Pass:
        try:
            self._floor = self._modules.begin_pass()
        except Exception as error:
            let_through(error)
            self._modules.site.fail(error)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._floor is None:
            return
        try:
            self._modules.end_pass(self._floor, (kind, error, trace))
        except Exception as fault:
            let_through(fault)
            self._modules.site.fail(fault)


_modules: Modules | None = None
