"""Changes parameters of a running script: the objects of `hop.params`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopyard.errors import SpecError
from hopyard.sdk.params import Params, convert_override, recorded_values, scaled_params

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue

Change = tuple["ParamValue", "ParamValue"]  # the recorded values before and after


class LiveParams:
    """All `hop.params` objects of this process, with their defaults."""

    def __init__(self) -> None:
        self._declarations: list[tuple[Params, Mapping[str, object]]] = []

    def add(self, params: Params, defaults: Mapping[str, object]) -> None:
        """Adds an object that the script got. Its values change with commands."""
        self._declarations.append((params, dict(defaults)))

    def declared(self) -> list[tuple[Params, list[str]]]:
        """Returns the objects, with the names that each declares."""
        return [(params, list(defaults)) for params, defaults in self._declarations]

    def names(self) -> list[str]:
        """Returns the names of all declared parameters."""
        return list(dict.fromkeys(name for params, _ in self._declarations for name in params))

    def convert(self, values: Mapping[str, ParamValue]) -> dict[str, Any]:
        """Returns the values with the types of the defaults. Raises SpecError for an unknown name or a wrong
        type, with nothing changed."""
        converted = {}
        for name, value in values.items():
            default = next(
                (defaults[name] for _, defaults in self._declarations if name in defaults), _UNKNOWN
            )
            if default is _UNKNOWN:
                raise SpecError(unknown_param_text(name, self.names()))
            try:
                converted[name] = convert_override(name, value, default)
            except SpecError as error:
                raise SpecError(error.message.removeprefix("-p ")) from None
        return converted

    def values(self) -> dict[str, Any]:
        """Returns all declared parameters with their current values."""
        return {name: params[name] for params, _ in self._declarations for name in params}

    def scaled_values(self) -> dict[str, Any]:
        """Returns the effective values that batch-size rules make of them."""
        return {
            name: value
            for params, _ in self._declarations
            for scaled in scaled_params(params)
            for name, value in scaled.scaling.values().items()
        }

    def change(self, values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Sets converted values in all objects. Returns the value before and after of each. Raises SpecError
        for a value that a batch-size rule cannot use, with nothing changed."""
        changes: dict[str, tuple[Any, Any]] = {}
        done: list[tuple[Params, str, Any]] = []
        try:
            for params, defaults in self._declarations:
                for name in (name for name in values if name in defaults):
                    before = params.get(name)
                    done.append((params, name, before))
                    params[name] = values[name]
                    changes.setdefault(name, (before, values[name]))
        except SpecError:
            for params, name, before in reversed(done):
                params[name] = before
            raise
        return {name: changes[name] for name in values}


_UNKNOWN = object()


def recorded_changes(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, Change]:
    """Returns the changes as a run records them."""
    before = recorded_values({name: old for name, (old, _) in changes.items()})
    after = recorded_values({name: new for name, (_, new) in changes.items()})
    return {name: (before[name], after[name]) for name in changes}


def unknown_param_text(name: str, declared: Sequence[str]) -> str:
    """Returns the message for a parameter that the script does not declare, with the closest name."""
    from difflib import get_close_matches

    close = get_close_matches(name, declared, n=1)
    if close:
        return f"the script has no parameter `{name}`; did you mean `{close[0]}`?"
    if not declared:
        return f"the script has no parameter `{name}`: it has declared none with hop.params so far"
    return f"the script has no parameter `{name}`; it has {', '.join(declared)}"
