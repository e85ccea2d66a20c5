"""`torch.distributed`: collectives and sends by name, bytes, group and rank, and how long each was under way.

What the C++ of DDP and FSDP sends on its own does not come by these functions. It knows no backend.
"""

from __future__ import annotations

import sys
from _weakref import ref

from gputrace import hot
from gputrace.fence import let_through
from gputrace.instrument.torch import prepare, streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: Each with the parameter, by its place, that holds what this rank sends, or receives.
_COLLECTIVES: Final = {
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "all_gather_object": None,
    "all_reduce": 0,
    "all_to_all": 1,
    "all_to_all_single": 1,
    "barrier": None,
    "broadcast": 0,
    "broadcast_object_list": None,
    "gather": 0,
    "irecv": 0,
    "isend": 0,
    "monitored_barrier": None,
    "recv": 0,
    "reduce": 0,
    "reduce_scatter": 1,
    "reduce_scatter_tensor": 1,
    "scatter": 0,
    "send": 0,
}
#: They return before anything is there, whatever they are told.
_ALWAYS_ASYNC: Final = ("irecv", "isend")


def distributed(site: Site) -> None:
    """Show the collectives of the module ``torch.distributed.distributed_c10d``."""
    c10d = site.module
    torch = sys.modules["torch"]
    prepare(site, torch)
    flights = _Flights()

    def bytes_of(value: Any) -> int:
        values = value if isinstance(value, (list, tuple)) else [value]
        # A tensor of the program's own class answers by the program's own code.
        return sum(each.nbytes for each in values if type(each) is torch.Tensor or type(each) is torch.nn.Parameter)

    def swap(name: str, function: Any, place: int | None) -> None:
        code = function.__code__
        parameters = code.co_varnames[: code.co_argcount]
        group_place = parameters.index("group")
        peer = next((name for name in ("src", "dst") if name in parameters), "")
        async_place = parameters.index("async_op") if "async_op" in parameters else None

        def around(*args: Any) -> Any:
            facts: dict[str, Any] = {}
            device = None
            if place is not None:
                facts["bytes"] = bytes_of(args[place])
                device = streams.device_of(
                    args[place] if isinstance(args[place], (list, tuple)) else args[place : place + 1]
                )
            if peer and args[parameters.index(peer)] is not None:
                facts[peer] = args[parameters.index(peer)]
            group = args[group_place]
            try:
                facts["rank"], facts["ranks"] = c10d.get_rank(), c10d.get_world_size(group)
                facts["group"] = (c10d._get_default_group() if group is None else group).group_name
            except Exception as error:  # there is none yet, or this rank is not in it: torch will say so
                let_through(error)
            # The current stream waits for what is not asynchronous, and not for the rest before `wait`.
            waits = name not in _ALWAYS_ASYNC and not (async_place is not None and args[async_place])
            return _Call(name, facts, device, streams.of_device(device) if waits else None)

        def returned(call: Any, handle: Any) -> None:
            if isinstance(call, _Call) and isinstance(handle, c10d.Work):
                flights.start(handle, name, hot.window(f"{name} in flight", None, **call.facts), call.device)

        site.swap(function, around, returned)

    for name, place in _COLLECTIVES.items():
        function: Any = getattr(c10d, name, None)
        while hasattr(function, "__wrapped__"):  # behind those that log: it has the parameters in their order
            function = function.__wrapped__
        if function is not None:
            swap(name, function, place)

    wait = c10d.Work.wait

    def wait_and_land(self: Any, *args: Any, **kwargs: Any) -> Any:
        flight = flights.of(self)
        if flight is None:
            return wait(self, *args, **kwargs)
        name, window, device = flight
        try:
            with hot.span(f"{name}.wait", streams.of_device(device)):
                return wait(self, *args, **kwargs)
        finally:
            window.close()

    if site.on_code is not None:
        site.on_code(wait_and_land.__code__, wrapper=True)
    site.set(c10d.Work, "wait", wait_and_land)


class _Call:
    """The slice of one call, and its facts."""

    __slots__ = ("_span", "device", "facts")

    def __init__(self, name: str, facts: dict[str, Any], device: int | None, stream: int | None) -> None:
        self.facts = facts
        self.device = device
        self._span = hot.span(name, stream, **facts)

    def __enter__(self) -> _Call:
        self._span.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._span.__exit__(kind, error, trace)


class _Flights:
    """Collectives under way, by their handles, which take no attributes: (weak reference, name, window, GPU)."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Any, str, Any, int | None]] = {}

    def start(self, handle: Any, name: str, window: Any, device: int | None) -> None:
        key = id(handle)

        def gone(reference: Any) -> None:
            """Nobody can wait for it any more."""
            entry = self._open.get(key)
            if entry is not None and entry[0] is reference:
                del self._open[key]
                entry[2].close()

        self._open[key] = (ref(handle, gone), name, window, device)

    def of(self, handle: Any) -> tuple[str, Any, int | None] | None:
        """Name, window and GPU of a handle that is waited for, once."""
        entry = self._open.get(id(handle))
        if entry is None or entry[0]() is not handle:
            return None
        del self._open[id(handle)]
        return entry[1:]
