"""`hop.bind`: the objects that a checkpoint holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopyard.errors import SpecError
from hopyard.sdk import state as states
from hopyard.sdk.checkpoints import Contents
from hopyard.sdk.speak import say
from hopyard.sdk.state import Kind


class Bound:
    """What is bound, by name, as attributes. Plain values are kept up to date here: `best =
    hop.bind(acc=0.0)`, later `best.acc = acc`; the next checkpoint holds it, and a resumed run finds it."""

    def __init__(self) -> None:
        vars(self)["_restored"] = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __repr__(self) -> str:
        return f"Bound({', '.join(objects(self)) or 'nothing'})"


def objects(bound: Bound) -> dict[str, Any]:
    """All bound objects, in the order of binding."""
    return {name: value for name, value in vars(bound).items() if not name.startswith("_")}


def holds_state(bound: Bound) -> bool:
    """Whether a checkpoint of these objects could bring anything back."""
    return any(states.kind_of(value) is not Kind.ASIDE for value in objects(bound).values())


def add(bound: Bound, values: dict[str, Any]) -> None:
    """Bind `values`; those that the checkpoint, when it was loaded before, knows get their state at once."""
    for name, value in values.items():
        if not name.isidentifier() or name.startswith("_"):
            raise SpecError(
                f"hop.bind: `{name}` cannot name an object",
                hints=("a name as of a variable, without `_` in front",),
            )
        vars(bound)[name] = value
    restored: Contents | None = vars(bound)["_restored"]
    if restored is not None:
        _restore(bound, restored, [name for name in values if name in restored.objects])


def restore(bound: Bound, contents: Contents) -> None:
    """Give every bound object its state from a checkpoint; says which one has none, and which state nobody
    wants."""
    mine = {name for name, value in objects(bound).items() if states.kind_of(value) is not Kind.ASIDE}
    for name in sorted(mine - set(contents.objects)):
        say(
            f"the checkpoint of step {contents.step} has no `{name}`; it starts as it is",
            once=f"lacks-{name}",
        )
    for name in sorted(set(contents.objects) - mine):
        say(
            f"the checkpoint of step {contents.step} holds `{name}`, which is not bound yet (hop.bind)",
            once=f"unbound-{name}",
        )
    _restore(bound, contents, sorted(mine & set(contents.objects)))
    vars(bound)["_restored"] = contents


def _restore(bound: Bound, contents: Contents, names: list[str]) -> None:
    for name in names:
        vars(bound)[name] = states.put_back(name, vars(bound)[name], contents.state_of(name))
