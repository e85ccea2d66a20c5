"""Puts a function where a class holds one, also in a class made in C that refuses it.

Such classes (all of a Cython module's) are meant to be left as they are, since instances may hold what they found in
them: a method that C calls by a slot, as every ``__method__``, and as it remembers it. What they hold by plain names is
looked up at each call, from a dict that the class alone can reach, and its garbage collector. It knows no framework.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def put(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a module or class. Raises `TypeError` for a ``__method__`` of a class made in C."""
    try:
        setattr(owner, name, value)
    except TypeError:
        if not isinstance(owner, type) or name not in vars(owner) or name.startswith("__"):
            raise
    else:
        return
    import ctypes  # where there is such a class, not in every program
    import gc

    [names] = [each for each in gc.get_referents(vars(owner)) if type(each) is dict]
    names[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))  # what is remembered of it is not so any more
