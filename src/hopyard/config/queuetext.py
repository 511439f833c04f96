"""Writes a tree of queues as the file that declares it, and tells two trees apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hopyard.config import units
from hopyard.config.amounts import write_amounts
from hopyard.config.queues import LIMITS
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.quota import children


def tree_text(tree: QueueTree) -> str:
    """YAML, nested. `config.queues` reads it back as an equal tree."""
    return mapping_text(tree_mapping(tree))


def mapping_text(mapping: Mapping[str, Any]) -> str:
    """What `tree_mapping` made, as YAML."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
            super().increase_indent(flow, False)

    written: str = yaml.dump(
        dict(mapping), Dumper=Dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True
    )
    return written


def tree_mapping(tree: QueueTree) -> dict[str, Any]:
    """What the file holds; what is as it would be anyway is left out."""
    below = children(tree)

    def written(names: list[QueueName]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            found[name] = queue_mapping(tree.queues[name])
            if name in below:
                found[name]["queues"] = written(below[name])
        return found

    return {
        "default": tree.default,
        "half_life": units.format_time(tree.half_life_s),
        "queues": written(below[None]),
    }


def queue_mapping(queue: Queue) -> dict[str, Any]:
    """A queue without its name, its parent and those below it."""
    found: dict[str, Any] = (
        {}
        if queue.weight == 1.0
        else {"weight": int(queue.weight) if queue.weight.is_integer() else queue.weight}
    )
    for key in LIMITS:
        if amounts := getattr(queue, key):
            found[key] = write_amounts(amounts)
    plain = Queue(queue.name)
    for key in ("submitters", "admins"):
        if users := getattr(queue, key):
            found[key] = list(users)
    low, high = queue.priorities
    usual = plain.default_priority  # without `priorities`, they end at the default
    if queue.priorities != (0, queue.default_priority):
        found["priorities"] = [low, high]
        usual = min(max(usual, low), high)
    if queue.user_priorities:
        found["user_priorities"] = dict(queue.user_priorities)
    if queue.default_priority != usual:
        found["default_priority"] = queue.default_priority
    for key in ("reclaims", "preempts_lower", "time_slices", "no_preempt"):
        if getattr(queue, key) != getattr(plain, key):
            found[key] = getattr(queue, key)
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two trees. queue: None for the settings of the whole tree.
    detail: what of it, for people."""

    kind: str  # "added", "removed", "changed"
    queue: QueueName | None
    detail: str = ""


def changes(before: QueueTree, after: QueueTree) -> list[Change]:
    """What has to be done to the one to become the other, by queue."""
    found = list(_of_tree(before, after))
    for name in sorted({*before.queues, *after.queues}):
        old, new = before.queues.get(name), after.queues.get(name)
        if old is None or new is None:
            below = f"below {new.parent}" if new is not None and new.parent else ""
            found.append(Change("added" if old is None else "removed", name, below))
        elif old != new:
            found.append(Change("changed", name, "; ".join(_differences(old, new))))
    return found


def _of_tree(before: QueueTree, after: QueueTree) -> Iterator[Change]:
    if before.default != after.default:
        yield Change("changed", None, f"default: {before.default} → {after.default}")
    if before.half_life_s != after.half_life_s:
        yield Change(
            "changed",
            None,
            f"half_life: {units.format_time(before.half_life_s)} → {units.format_time(after.half_life_s)}",
        )


def _differences(old: Queue, new: Queue) -> Iterator[str]:
    for field in fields(Queue):
        was, is_now = getattr(old, field.name), getattr(new, field.name)
        if was != is_now:
            shown = _shown_users if field.name == "user_priorities" else _shown
            yield f"{field.name}: {shown(was)} → {shown(is_now)}"


def _shown_users(users: Mapping[str, int]) -> str:
    return ", ".join(f"{user} {highest}" for user, highest in users.items()) or "none"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {amount}" for key, amount in write_amounts(value).items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
