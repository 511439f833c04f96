"""`hop.bind`: the objects that a checkpoint holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopyard.errors import SpecError
from hopyard.sdk import object_state as states
from hopyard.sdk.checkpoints import CheckpointContents
from hopyard.sdk.object_state import StateKind
from hopyard.sdk.pickle_check import check_bound_object
from hopyard.sdk.restored_hyperparameters import Settings, apply_changes, capture_settings
from hopyard.sdk.warn_once import warn_once


class BoundObjects:
    """The bound objects, as attributes by name.

    Plain values are updated here: after `best = hop.bind(acc=0.0)`, set `best.acc = acc`. The next checkpoint
    stores the new value, and a resumed run restores it.
    """

    def __init__(self) -> None:
        vars(self)["_restored"], vars(self)["_built_settings"] = None, {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __repr__(self) -> str:
        return f"Bound({', '.join(bound_objects(self)) or 'nothing'})"


def bound_objects(bound: BoundObjects) -> dict[str, Any]:
    """Returns all bound objects, in the order of binding."""
    return {name: value for name, value in vars(bound).items() if not name.startswith("_")}


def holds_state(bound: BoundObjects) -> bool:
    """Returns whether a checkpoint of these objects would store any state."""
    return any(states.state_kind(value) is not StateKind.UNSAVED for value in bound_objects(bound).values())


def bind_objects(bound: BoundObjects, values: dict[str, Any]) -> None:
    """Binds `values`. Restores each one at once if the loaded checkpoint has its state. Raises SpecError for
    an object that no checkpoint can hold."""
    # an object that is bound once more may be trained already
    new_values = {name: value for name, value in values.items() if vars(bound).get(name) is not value}
    for name, value in values.items():
        if not name.isidentifier() or name.startswith("_"):
            raise SpecError(
                f"hop.bind: `{name}` cannot name an object",
                hints=("a name as of a variable, without `_` in front",),
            )
        check_bound_object(name, value)
        vars(bound)[name] = value
    built_settings(bound).update(capture_settings(new_values))
    restored: CheckpointContents | None = vars(bound)["_restored"]
    if restored is not None:
        _restore(bound, restored, [name for name in values if name in restored.objects])


def restore(bound: BoundObjects, contents: CheckpointContents) -> None:
    """Restores every bound object from a checkpoint.

    Warns about each object without a saved state, and about each saved state without a bound object.
    """
    bound_names = {
        name
        for name, value in bound_objects(bound).items()
        if states.state_kind(value) is not StateKind.UNSAVED
    }
    for name in sorted(bound_names - set(contents.objects)):
        warn_once(
            f"the checkpoint of step {contents.step} has no `{name}`; it starts as it is",
            kind=f"lacks-{name}",
        )
    for name in sorted(set(contents.objects) - bound_names):
        warn_once(
            f"the checkpoint of step {contents.step} holds `{name}`, which is not bound yet (hop.bind)",
            kind=f"unbound-{name}",
        )
    _restore(bound, contents, sorted(bound_names & set(contents.objects)))
    vars(bound)["_restored"] = contents


def built_settings(bound: BoundObjects) -> Settings:
    """Returns the settings of the bound optimizers and schedulers as the script built them."""
    settings: Settings = vars(bound)["_built_settings"]
    return settings


def _restore(bound: BoundObjects, contents: CheckpointContents, names: list[str]) -> None:
    for name in names:
        vars(bound)[name] = states.restore_state(name, vars(bound)[name], contents.state_of(name))
    apply_changes({name: vars(bound)[name] for name in names}, built_settings(bound), contents.settings)
