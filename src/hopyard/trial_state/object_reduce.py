"""Pickle's protocol for an object: how it is rebuilt. Only used in the user's own processes."""

from __future__ import annotations

import copyreg
import importlib
import sys
from dataclasses import dataclass
from typing import Any

# Stored states refer to a class by its module. These modules were moved: states still use the old names, so
# that
# older states can be read and a replayed state has the same digest.
_STORED_MODULES = {
    "hopyard.trainables.config": "hopyard.studies.trainable.config",
    "hopyard.trainables.keras_trainable": "hopyard.studies.trainable.keras_trainable",
    "hopyard.trainables.protocol": "hopyard.studies.trainable.protocol",
    "hopyard.trainables.torch_trainable": "hopyard.studies.trainable.torch_trainable",
}
_MOVED_MODULES = {stored: module for module, stored in _STORED_MODULES.items()}


class NotSerializable(Exception):
    """A part of a state cannot be serialized. path: the steps to it, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


@dataclass(frozen=True, slots=True)
class ReducedObject:
    """Rebuilt as make(*arguments), then `setter(object, state)` (None: `__setstate__` or its attributes),
    then elements and pairs are added."""

    make: Any
    arguments: tuple[Any, ...]
    state: Any
    elements: list[Any] | None
    pairs: list[tuple[Any, Any]] | None
    setter: Any


def reduce_object(value: Any) -> ReducedObject | str:
    """Returns the reduced object, or the name of a global. Raises NotSerializable."""
    kind = type(value)
    try:
        reducer = copyreg.dispatch_table.get(kind)
        reduction = reducer(value) if reducer is not None else value.__reduce_ex__(4)
    except NotSerializable:
        raise
    except Exception as error:
        raise NotSerializable(f"a `{_type_name(kind)}` cannot be serialized: {error}") from error
    if isinstance(reduction, str):
        return reduction
    if (
        not isinstance(reduction, tuple)
        or not 2 <= len(reduction) <= 6
        or not callable(reduction[0])
        or not isinstance(reduction[1], tuple)
    ):
        raise NotSerializable(
            f"`{_type_name(kind)}.__reduce_ex__` did not return a tuple of a callable and its arguments"
        )
    parts: list[Any] = [*reduction, *(None,) * (6 - len(reduction))]
    make, arguments, state, elements, pairs, setter = parts
    return ReducedObject(
        make,
        arguments,
        state,
        None if elements is None else list(elements),
        None if pairs is None else list(pairs),
        setter,
    )


def global_name(value: Any, name: str = "") -> tuple[str, str]:
    """Returns the module and the name from which it can be imported again. Raises NotSerializable if it
    cannot."""
    name = name or getattr(value, "__qualname__", "") or getattr(value, "__name__", "")
    module = getattr(value, "__module__", None) or "builtins"
    try:
        if import_global(module, name) is value:
            return _STORED_MODULES.get(module, module), name
    except (ImportError, AttributeError):
        pass
    subject = "a class" if isinstance(value, type) else f"a `{_type_name(type(value))}`"
    location = (
        "inside a function" if "<locals>" in name else "under another name" if name else "without a name"
    )
    if "<lambda>" in name:
        subject, location = "a lambda", "in place"
    raise NotSerializable(
        f"{subject} defined {location} cannot be found again in another process ({module}.{name})"
    )


def import_global(module: str, name: str) -> Any:
    """Returns the object that a state refers to by this name. Raises ImportError, AttributeError."""
    module = _MOVED_MODULES.get(module, module)
    target: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def set_state(instance: Any, state: Any, setter: Any) -> None:
    """Sets the state as pickle does."""
    if setter is not None:
        setter(instance, state)
        return
    own_setter = getattr(instance, "__setstate__", None)
    if own_setter is not None:
        own_setter(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        instance.__dict__.update(
            {sys.intern(key) if type(key) is str else key: value for key, value in state.items()}
        )
    if slots:
        for key, value in slots.items():
            setattr(instance, key, value)


def _type_name(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
