"""Restores an object from a saved copy, in place if possible, so that existing references in the script see
it."""

from __future__ import annotations

import copyreg
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hopyard.backports import zip
from hopyard.errors import SpecError

_SEQUENCE_TYPES = (list, bytearray, deque)


class InPlaceRestorer:
    """Fills objects from their saved copies.

    state_of, put_state: for objects with methods for their own state; state_of returns None for all others.
    on_change: called with a sentence for an array or a tensor of the script that could not be filled.

    One object of the script takes the contents of one saved object, and vice versa. Two references to one
    saved object are references to one object again, and two objects stay two.
    """

    def __init__(
        self,
        state_of: Callable[[Any], Any],
        put_state: Callable[[Any, Any], None],
        on_change: Callable[[str], None],
    ) -> None:
        self._capture_state, self._restore_state, self._on_change = state_of, put_state, on_change
        self._results: dict[int, Any] = {}  # by the id of the saved object
        self._restored: set[int] = set()  # ids of the script's objects that have their contents
        self._retained: list[Any] = []  # so that no id is reused meanwhile

    def restore(self, current: Any, saved: Any) -> Any:
        """Returns the object with the saved contents: `current`, or another one if it cannot be filled.
        Raises SpecError for a trained tensor of another shape or type."""
        if id(saved) in self._results:
            return self._results[id(saved)]
        if current is saved or id(current) in self._restored:
            return saved
        self._retained += (current, saved)
        self._restored.add(id(current))
        self._results[id(saved)] = current  # before its parts, which may refer to it
        result = self._results[id(saved)] = self._restore_value(current, saved)
        if result is not current:
            self._restored.discard(id(current))
        return result

    def _restore_value(self, current: Any, saved: Any) -> Any:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(current, torch.Tensor) and isinstance(saved, torch.Tensor):
            return self._restore_tensor(torch, current, saved)
        if numpy is not None and isinstance(current, numpy.ndarray) and isinstance(saved, numpy.ndarray):
            return self._restore_array(current, saved)
        if type(current) is not type(saved):
            return saved
        if (state := self._capture_state(saved)) is not None:
            self._restore_state(current, state)
            return current
        if callable(current):
            return saved
        if isinstance(current, tuple):
            parts = self._restore_parts(current, saved)
            unchanged = len(current) == len(parts) and all(
                existing is part for existing, part in zip(current, parts, strict=True)
            )
            return current if unchanged else tuple.__new__(type(saved), parts)
        if isinstance(current, dict):
            self._restore_dict(current, saved)
        elif isinstance(current, _SEQUENCE_TYPES):
            parts = self._restore_parts(list(current), saved)
            current.clear()
            current.extend(parts)
        elif isinstance(current, set):
            current.clear()
            current.update(saved)
        elif _is_array_of_numbers(current) and current.typecode == saved.typecode:
            current[:] = saved
        else:
            return current if self._restore_object(current, saved) else saved
        if hasattr(current, "__dict__"):  # an instance of a class of the script
            self._restore_dict(vars(current), vars(saved))
        return current

    def _restore_parts(self, value: Sequence[Any], saved: Iterable[Any]) -> list[Any]:
        return [
            self.restore(value[index], part) if index < len(value) else part
            for index, part in enumerate(saved)
        ]

    def _restore_dict(self, value: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
        parts = {key: self.restore(value[key], part) if key in value else part for key, part in saved.items()}
        value.clear()
        value.update(parts)

    def _restore_object(self, value: Any, saved: Any) -> bool:
        """Fills an object whose contents are all in its attributes, or that takes a state from pickle.
        Returns False for all others (numbers, text, paths, enum members), which are defined by their
        constructor's arguments."""
        try:
            constructor, arguments, state, *items = (*saved.__reduce_ex__(2), None, None)[:5]
        except (TypeError, ValueError):
            return False
        if (
            constructor is not copyreg.__newobj__  # type: ignore[attr-defined]
            or len(arguments) != 1
            or any(item_iterator is not None for item_iterator in items)
        ):
            return False
        if hasattr(value, "__setstate__"):
            if state is not None:
                value.__setstate__(state)
            return state is not None
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        if hasattr(value, "__dict__"):
            self._restore_dict(vars(value), attributes or {})
        for name, part in (slots or {}).items():
            setattr(value, name, self.restore(getattr(value, name), part) if hasattr(value, name) else part)
        return bool(slots) or hasattr(value, "__dict__")

    def _restore_tensor(self, torch: Any, value: Any, saved: Any) -> Any:
        if value.shape != saved.shape or value.dtype != saved.dtype or value.layout != saved.layout:
            if value.requires_grad and value.is_leaf:
                raise SpecError(f"it is {_type_name(value)} here, and {_type_name(saved)} in the checkpoint")
            self._on_change(f"{_type_name(saved)} in the checkpoint and {_type_name(value)} here")
            return saved
        with torch.no_grad():
            value.copy_(saved)
        return value

    def _restore_array(self, value: Any, saved: Any) -> Any:
        if value.shape != saved.shape or value.dtype != saved.dtype:
            self._on_change(f"{_type_name(saved)} in the checkpoint and {_type_name(value)} here")
            return saved
        if not value.flags.writeable:
            return saved
        value[...] = saved
        return value


def _is_array_of_numbers(value: Any) -> bool:
    array = sys.modules.get("array")
    return array is not None and isinstance(value, array.array)


def _type_name(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
