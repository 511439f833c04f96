"""Changes parameters of a running script: the objects of `hop.params`, and bound optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopyard.errors import SpecError
from hopyard.sdk.params import Params, convert_override, recorded_values
from hopyard.sdk.restored_hyperparameters import Settings, scale_setting, setting_groups

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue

# parameters with other names in the groups of an optimizer
_GROUP_KEYS = {"learning_rate": "lr", "wd": "weight_decay"}
Change = tuple["ParamValue", "ParamValue"]  # the recorded values before and after


class LiveParams:
    """All `hop.params` objects of this process, with their defaults."""

    def __init__(self) -> None:
        self._declarations: list[tuple[Params, Mapping[str, object]]] = []

    def add(self, params: Params, defaults: Mapping[str, object]) -> None:
        """Adds an object that the script got. Its values change with commands."""
        self._declarations.append((params, dict(defaults)))

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
        return f"the script has no parameter `{name}`: it declares none with hop.params"
    return f"the script has no parameter `{name}`; it has {', '.join(declared)}"


def follow_in_optimizers(
    objects: Mapping[str, Any], built: Settings, changes: Mapping[str, tuple[Any, Any]]
) -> list[str]:
    """Applies changed parameters to the groups of bound optimizers that have a setting of that name, and to
    their schedulers. A group with another value, such as a decayed rate, is scaled by the same factor.

    built: the settings as the script built them, which a checkpoint records; they change as well, so that a
    resumed run does not apply the change twice. Returns a text for each changed object.
    """
    texts = []
    for name, (old, new) in changes.items():
        key = _GROUP_KEYS.get(name, name)
        for object_name, group_changes in _scaled_groups(objects, built, key, old, new):
            before, after = group_changes
            texts.append(f"{key} of `{object_name}` {_text(before)} -> {_text(after)}")
    return texts


def _scaled_groups(
    objects: Mapping[str, Any], built: Settings, key: str, old: Any, new: Any
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for object_name, groups in setting_groups(objects):
        first: tuple[Any, Any] | None = None
        for group in groups:
            change = scale_setting(group, key, old, new)
            first = first or change
        for group in built.get(object_name, []):
            scale_setting(group, key, old, new)
        if first is not None:
            yield object_name, first


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
