"""`hop.bind`: the objects that a checkpoint holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopyard.errors import SpecError
from hopyard.sdk import object_state as states
from hopyard.sdk.checkpoints import CheckpointContents
from hopyard.sdk.object_state import StateKind
from hopyard.sdk.warn_once import warn_once


class BoundObjects:
    """What is bound, by name, as attributes. Plain values are kept up to date here: `best =
    hop.bind(acc=0.0)`, later `best.acc = acc`; the next checkpoint holds it, and a resumed run finds it."""

    def __init__(self) -> None:
        vars(self)["_restored"] = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __repr__(self) -> str:
        return f"Bound({', '.join(bound_objects(self)) or 'nothing'})"


def bound_objects(bound: BoundObjects) -> dict[str, Any]:
    """All bound objects, in the order of binding."""
    return {name: value for name, value in vars(bound).items() if not name.startswith("_")}


def holds_state(bound: BoundObjects) -> bool:
    """Whether a checkpoint of these objects could bring anything back."""
    return any(states.state_kind(value) is not StateKind.UNSAVED for value in bound_objects(bound).values())


def bind_objects(bound: BoundObjects, values: dict[str, Any]) -> None:
    """Bind `values`; those that the checkpoint, when it was loaded before, knows get their state at once."""
    for name, value in values.items():
        if not name.isidentifier() or name.startswith("_"):
            raise SpecError(
                f"hop.bind: `{name}` cannot name an object",
                hints=("a name as of a variable, without `_` in front",),
            )
        vars(bound)[name] = value
    restored: CheckpointContents | None = vars(bound)["_restored"]
    if restored is not None:
        _restore(bound, restored, [name for name in values if name in restored.objects])


def restore(bound: BoundObjects, contents: CheckpointContents) -> None:
    """Give every bound object its state from a checkpoint; says which one has none, and which state nobody
    wants."""
    mine = {
        name
        for name, value in bound_objects(bound).items()
        if states.state_kind(value) is not StateKind.UNSAVED
    }
    for name in sorted(mine - set(contents.objects)):
        warn_once(
            f"the checkpoint of step {contents.step} has no `{name}`; it starts as it is",
            kind=f"lacks-{name}",
        )
    for name in sorted(set(contents.objects) - mine):
        warn_once(
            f"the checkpoint of step {contents.step} holds `{name}`, which is not bound yet (hop.bind)",
            kind=f"unbound-{name}",
        )
    _restore(bound, contents, sorted(mine & set(contents.objects)))
    vars(bound)["_restored"] = contents


def _restore(bound: BoundObjects, contents: CheckpointContents, names: list[str]) -> None:
    for name in names:
        vars(bound)[name] = states.restore_state(name, vars(bound)[name], contents.state_of(name))
