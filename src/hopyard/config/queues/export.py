"""Writes a tree of queues as the file that declares it, and compares two trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hopyard.config import units
from hopyard.config.queues.queue_file import LIMIT_KEYS
from hopyard.config.resource_amounts import write_amounts
from hopyard.config.yaml_loader import dump_yaml
from hopyard.domain.effective_limits import child_queues
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Queue, QueueTree


def mapping_text(mapping: Mapping[str, Any]) -> str:
    """Returns the result of `tree_mapping` as YAML. `config.queues.queue_file` reads it back as an equal
    tree."""
    return dump_yaml(dict(mapping), default_flow_style=None, width=120)


def tree_mapping(tree: QueueTree) -> dict[str, Any]:
    """Returns the mapping of the file. Settings that equal their defaults are left out."""
    children = child_queues(tree)

    def written(names: list[QueueName]) -> dict[str, Any]:
        mappings: dict[str, Any] = {}
        for name in names:
            mappings[name] = queue_mapping(tree.queues[name])
            if name in children:
                mappings[name]["queues"] = written(children[name])
        return mappings

    return {
        "default": tree.default,
        "half_life": units.format_time(tree.half_life_s),
        "queues": written(children[None]),
    }


def queue_mapping(queue: Queue) -> dict[str, Any]:
    """Returns the mapping of a queue without its name, its parent and its children."""
    mapping: dict[str, Any] = (
        {}
        if queue.weight == 1.0
        else {"weight": int(queue.weight) if queue.weight.is_integer() else queue.weight}
    )
    for key in LIMIT_KEYS:
        if amounts := getattr(queue, key):
            mapping[key] = write_amounts(amounts)
    defaults = Queue(queue.name)
    for key in ("submitters", "admins"):
        if users := getattr(queue, key):
            mapping[key] = list(users)
    low, high = queue.priorities
    default_priority = defaults.default_priority  # without `priorities`, they end at the default
    if queue.priorities != (0, queue.default_priority):
        mapping["priorities"] = [low, high]
        default_priority = min(max(default_priority, low), high)
    if queue.user_priorities:
        mapping["user_priorities"] = dict(queue.user_priorities)
    if queue.default_priority != default_priority:
        mapping["default_priority"] = queue.default_priority
    for key in ("reclaims", "preempts_lower", "time_slices", "no_preempt"):
        if getattr(queue, key) != getattr(defaults, key):
            mapping[key] = getattr(queue, key)
    return mapping


@dataclass(frozen=True, slots=True)
class QueueChange:
    """One difference between two trees. queue: None for the settings of the whole tree.
    detail: what of it, for people."""

    kind: str  # "added", "removed", "changed"
    queue: QueueName | None
    detail: str = ""


def diff_trees(old_tree: QueueTree, new_tree: QueueTree) -> list[QueueChange]:
    """Returns the changes that turn the old tree into the new one, by queue."""
    changes = list(_tree_changes(old_tree, new_tree))
    for name in sorted({*old_tree.queues, *new_tree.queues}):
        old, new = old_tree.queues.get(name), new_tree.queues.get(name)
        if old is None or new is None:
            below = f"below {new.parent}" if new is not None and new.parent else ""
            changes.append(QueueChange("added" if old is None else "removed", name, below))
        elif old != new:
            changes.append(QueueChange("changed", name, "; ".join(_field_differences(old, new))))
    return changes


def _tree_changes(old: QueueTree, new: QueueTree) -> Iterator[QueueChange]:
    if old.default != new.default:
        yield QueueChange("changed", None, f"default: {old.default} → {new.default}")
    if old.half_life_s != new.half_life_s:
        yield QueueChange(
            "changed",
            None,
            f"half_life: {units.format_time(old.half_life_s)} → {units.format_time(new.half_life_s)}",
        )


def _field_differences(old: Queue, new: Queue) -> Iterator[str]:
    for field in fields(Queue):
        was, is_now = getattr(old, field.name), getattr(new, field.name)
        if was != is_now:
            shown = _users_text if field.name == "user_priorities" else _value_text
            yield f"{field.name}: {shown(was)} → {shown(is_now)}"


def _users_text(users: Mapping[str, int]) -> str:
    return ", ".join(f"{user} {highest}" for user, highest in users.items()) or "none"


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {amount}" for key, amount in write_amounts(value).items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
