"""`torch.modules`: a slice for each module's forward, named by its path in the model.

Through `nn.Module._wrapped_call_impl`, which every call of a module goes through; its hooks would change what
`torch.compile` and `torch.export` see. It knows nothing of training.
"""

from __future__ import annotations

from _weakref import ref

from gputrace import hot
from gputrace.instrument.site import NOTHING
from gputrace.instrument.torch import backward, prepare, streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: Attributes behind which a wrapper keeps the module that it wraps: they are left out of paths.
_WRAPPED: Final = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
#: Wrappers that keep it behind an attribute that others use, too.
_PARALLEL: Final = frozenset(("DistributedDataParallel", "DataParallel"))
_MOST_SHAPES: Final = 4096


def modules(site: Site) -> None:
    """Show forwards: "GPT", "GPT.layers.3.attn", with class and shapes of tensor arguments, down to ``site.value``."""
    torch = site.module
    prepare(site, torch)
    names = Names(site.value)
    known = names.known
    tensor, parameter = torch.Tensor, torch.nn.Parameter
    is_traced, has_mode = torch._C._get_tracing_state, torch._C._is_torch_function_mode_enabled
    texts: dict[Any, str] = {}

    def shape(value: Any) -> str:
        size = value.shape
        text = texts.get(size)
        if text is None:
            if len(texts) > _MOST_SHAPES:
                texts.clear()
            text = texts[size] = "x".join(map(str, size)) or "scalar"
        return text

    def around(module: Any, *args: Any, **kwargs: Any) -> Any:
        entry = known.get(id(module))
        if entry is None or entry[0]() is not module:
            names.add_root(module)
            entry = known[id(module)]
        _, name, kind = entry
        if not name:
            return NOTHING
        stream = streams.of_module(module, name, args, kwargs)
        facts: dict[str, Any] = {"class": kind}
        # What is asked of a tensor is itself recorded where a graph is being traced, or a mode looks on.
        if args and is_traced() is None and not has_mode():
            shapes = [shape(value) for value in args if type(value) is tensor or type(value) is parameter]
            if shapes:
                facts["shapes"] = ", ".join(shapes)
        call = backward.call_of(name, kind, args, kwargs)
        return hot.span(name, stream, **facts) if call is None else call.around(name, stream, facts)

    site.swap(torch.nn.Module._wrapped_call_impl, around)


class Names:
    """The name of each module known, by its identity: (weak reference, name, class), the name "" below the depth limit.

    A module called that is not known is a root, named by its class; with it, all that it holds get their names. Of two
    roots that hold a module, the one called first later names it.
    """

    def __init__(self, most_deep: int | None = None) -> None:
        self.known: dict[int, tuple[Any, str, str]] = {}
        self._most_deep = most_deep

    def add_root(self, root: Any) -> None:
        """Name a module, and all that it holds, however it holds them."""
        inner = root
        while (wrapped := _wrapped(inner)) is not None:
            inner = wrapped
        name = type(inner).__name__
        waiting = [(root, "")]
        seen = set()
        while waiting:
            module, path = waiting.pop()
            if id(module) in seen:
                continue  # shared: it keeps its first path
            seen.add(id(module))
            kind = type(module).__name__
            if path or module is inner:
                self._add(module, f"{name}.{path}" if path else name, kind, path.count(".") + 1 if path else 0)
            else:
                self._add(module, kind, kind, 0)
            wraps = _wrapped(module)
            # Backwards onto the stack, so that they are taken in their order.
            for key, child in reversed(list(_children(module))):
                below = path if child is wraps else f"{path}.{key}" if path else key
                waiting.append((child, below))

    def _add(self, module: Any, name: str, kind: str, depth: int) -> None:
        key = id(module)
        known = self.known

        def forget(gone: Any) -> None:
            entry = known.get(key)
            if entry is not None and entry[0] is gone:
                del known[key]

        limit = self._most_deep
        known[key] = (ref(module, forget), name if limit is None or depth <= limit else "", kind)


def _children(module: Any) -> Any:
    children = module.__dict__.get("_modules")
    if not isinstance(children, dict):
        return ()
    return ((key, child) for key, child in children.items() if child is not None)


def _wrapped(module: Any) -> Any:
    """The module that this one wraps; None if it is no wrapper."""
    parallel = type(module).__name__ in _PARALLEL
    for key, child in _children(module):
        if key in _WRAPPED or (parallel and key == "module"):
            return child
    return None
