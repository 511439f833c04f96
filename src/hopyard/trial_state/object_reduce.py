"""What pickle's protocol says of an object: how it is made again.
Only ever done in the user's own processes."""

from __future__ import annotations

import copyreg
import importlib
import sys
from dataclasses import dataclass
from typing import Any

# Stored states name a class by its module. These modules have moved since: states name them as before, so
# that older states can be read, and a state that is replayed has the same digest.
_STORED_MODULES = {
    "hopyard.trainables.config": "hopyard.studies.trainable.config",
    "hopyard.trainables.keras_trainable": "hopyard.studies.trainable.keras_trainable",
    "hopyard.trainables.protocol": "hopyard.studies.trainable.protocol",
    "hopyard.trainables.torch_trainable": "hopyard.studies.trainable.torch_trainable",
}
_MOVED_MODULES = {stored: module for module, stored in _STORED_MODULES.items()}


class NotSerializable(Exception):
    """A part of a state cannot be kept. path: the steps to it, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


@dataclass(frozen=True, slots=True)
class ReducedObject:
    """make(*arguments), then `setter(object, state)` (None: `__setstate__` or its attributes), then elements
    and pairs into it."""

    make: Any
    arguments: tuple[Any, ...]
    state: Any
    elements: list[Any] | None
    pairs: list[tuple[Any, Any]] | None
    setter: Any


def reduce_object(value: Any) -> ReducedObject | str:
    """A string is the name of a global. Raises Unkept."""
    kind = type(value)
    try:
        by_table = copyreg.dispatch_table.get(kind)
        answer = by_table(value) if by_table is not None else value.__reduce_ex__(4)
    except NotSerializable:
        raise
    except Exception as refused:
        raise NotSerializable(f"a `{_type_name(kind)}` cannot be kept: {refused}") from refused
    if isinstance(answer, str):
        return answer
    if (
        not isinstance(answer, tuple)
        or not 2 <= len(answer) <= 6
        or not callable(answer[0])
        or not isinstance(answer[1], tuple)
    ):
        raise NotSerializable(
            f"`{_type_name(kind)}.__reduce_ex__` did not return a tuple of a callable and its arguments"
        )
    filled: list[Any] = [*answer, *(None,) * (6 - len(answer))]
    make, arguments, state, elements, pairs, setter = filled
    return ReducedObject(
        make,
        arguments,
        state,
        None if elements is None else list(elements),
        None if pairs is None else list(pairs),
        setter,
    )


def global_name(value: Any, name: str = "") -> tuple[str, str]:
    """The module and the name under which it is found again. Raises Unkept where it is not."""
    name = name or getattr(value, "__qualname__", "") or getattr(value, "__name__", "")
    module = getattr(value, "__module__", None) or "builtins"
    try:
        if import_global(module, name) is value:
            return _STORED_MODULES.get(module, module), name
    except (ImportError, AttributeError):
        pass
    what = "a class" if isinstance(value, type) else f"a `{_type_name(type(value))}`"
    where = "inside a function" if "<locals>" in name else "under another name" if name else "without a name"
    if "<lambda>" in name:
        what, where = "a lambda", "in place"
    raise NotSerializable(
        f"{what} defined {where} cannot be found again in another process ({module}.{name})"
    )


def import_global(module: str, name: str) -> Any:
    """Returns what a state means by this name. Raises ImportError, AttributeError."""
    module = _MOVED_MODULES.get(module, module)
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def set_state(instance: Any, state: Any, setter: Any) -> None:
    """As pickle does it."""
    if setter is not None:
        setter(instance, state)
        return
    by_itself = getattr(instance, "__setstate__", None)
    if by_itself is not None:
        by_itself(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        instance.__dict__.update(
            {sys.intern(key) if type(key) is str else key: one for key, one in state.items()}
        )
    if slots:
        for key, one in slots.items():
            setattr(instance, key, one)


def _type_name(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
