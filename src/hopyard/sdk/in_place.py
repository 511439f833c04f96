"""Gives an object the contents of a saved copy, in place where that is possible, so that names that the
script already holds see it."""

from __future__ import annotations

import copyreg
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hopyard.errors import SpecError

_SEQUENCES = (list, bytearray, deque)


class Filler:
    """Fills objects from their saved copies. state_of, put_state: of objects that have methods for their own
    state; state_of returns None for all others. changed: called with a sentence where an array or a tensor of
    the script could not be filled.

    One object of the script takes the contents of one saved object, and the other way round: what was one
    object in two places when it was saved is one again, and what were two stay two.
    """

    def __init__(
        self,
        state_of: Callable[[Any], Any],
        put_state: Callable[[Any, Any], None],
        changed: Callable[[str], None],
    ) -> None:
        self._state_of, self._put_state, self._changed = state_of, put_state, changed
        self._results: dict[int, Any] = {}  # by the id of the saved object
        self._filled: set[int] = set()  # ids of the script's objects that have their contents
        self._kept: list[Any] = []  # so that no id is given out twice meanwhile

    def fill(self, value: Any, saved: Any) -> Any:
        """Returns the object that has the saved contents now: `value`, or another one where it cannot be
        filled. Raises SpecError for a trained tensor of another shape or type."""
        if id(saved) in self._results:
            return self._results[id(saved)]
        if value is saved or id(value) in self._filled:
            return saved
        self._kept += (value, saved)
        self._filled.add(id(value))
        self._results[id(saved)] = value  # before its parts, which may refer to it
        result = self._results[id(saved)] = self._fill(value, saved)
        if result is not value:
            self._filled.discard(id(value))
        return result

    def _fill(self, value: Any, saved: Any) -> Any:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.Tensor) and isinstance(saved, torch.Tensor):
            return self._fill_tensor(torch, value, saved)
        if numpy is not None and isinstance(value, numpy.ndarray) and isinstance(saved, numpy.ndarray):
            return self._fill_array(value, saved)
        if type(value) is not type(saved):
            return saved
        if (state := self._state_of(saved)) is not None:
            self._put_state(value, state)
            return value
        if callable(value):
            return saved
        if isinstance(value, tuple):
            parts = self._parts(value, saved)
            unchanged = len(value) == len(parts) and all(
                ours is part for ours, part in zip(value, parts, strict=True)
            )
            return value if unchanged else tuple.__new__(type(saved), parts)
        if isinstance(value, dict):
            self._fill_dict(value, saved)
        elif isinstance(value, _SEQUENCES):
            parts = self._parts(list(value), saved)
            value.clear()
            value.extend(parts)
        elif isinstance(value, set):
            value.clear()
            value.update(saved)
        else:
            return value if self._fill_object(value, saved) else saved
        if hasattr(value, "__dict__"):  # a class of the script's own
            self._fill_dict(vars(value), vars(saved))
        return value

    def _parts(self, value: Sequence[Any], saved: Iterable[Any]) -> list[Any]:
        return [self.fill(value[at], part) if at < len(value) else part for at, part in enumerate(saved)]

    def _fill_dict(self, value: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
        parts = {key: self.fill(value[key], part) if key in value else part for key, part in saved.items()}
        value.clear()
        value.update(parts)

    def _fill_object(self, value: Any, saved: Any) -> bool:
        """Fills an object that is all in its attributes, or that takes a state as pickle gives it. All others
        (numbers, texts, paths, members of an enum) are made of what their constructor was given."""
        try:
            make, given, state, *items = (*saved.__reduce_ex__(2), None, None)[:5]
        except (TypeError, ValueError):
            return False
        if make is not copyreg.__newobj__ or len(given) != 1 or any(one is not None for one in items):  # type: ignore[attr-defined]
            return False
        if hasattr(value, "__setstate__"):
            if state is not None:
                value.__setstate__(state)
            return state is not None
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        if hasattr(value, "__dict__"):
            self._fill_dict(vars(value), attributes or {})
        for name, part in (slots or {}).items():
            setattr(value, name, self.fill(getattr(value, name), part) if hasattr(value, name) else part)
        return bool(slots) or hasattr(value, "__dict__")

    def _fill_tensor(self, torch: Any, value: Any, saved: Any) -> Any:
        if value.shape != saved.shape or value.dtype != saved.dtype or value.layout != saved.layout:
            if value.requires_grad and value.is_leaf:
                raise SpecError(f"it is {_described(value)} here, and {_described(saved)} in the checkpoint")
            self._changed(f"{_described(saved)} in the checkpoint and {_described(value)} here")
            return saved
        with torch.no_grad():
            value.copy_(saved)
        return value

    def _fill_array(self, value: Any, saved: Any) -> Any:
        if value.shape != saved.shape or value.dtype != saved.dtype:
            self._changed(f"{_described(saved)} in the checkpoint and {_described(value)} here")
            return saved
        if not value.flags.writeable:
            return saved
        value[...] = saved
        return value


def _described(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
