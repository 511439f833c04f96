"""Reads the tree of queues from a file, nested or flat.

```yaml
default: vision                 # the queue of runs that name none
half_life: 7d                   # the time after which past use counts half
queues:
  research:
    guarantee: {gpus: 16, cpus: 128}
    maximum: {gpus: 32, gpus.A100: 8}
    admins: [carol]
    queues:                     # or, flat: `parent: research` in the queue
      vision: {weight: 2, user_limit: {gpus: 4}}
      nlp: {lend_limit: {gpus: 0}, submitters: [alice, bob], priorities: [0, 80], default_priority: 40}
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.config import units
from hopyard.config.limits import MAX_PRIORITY, MIN_PRIORITY
from hopyard.config.queues.limit_checks import check_limits
from hopyard.config.resource_amounts import read_amounts
from hopyard.config.section_values import read_flag
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, as_section, format_given, read_yaml
from hopyard.domain.effective_limits import child_queues, queue_path
from hopyard.domain.ids import DEFAULT_QUEUE, QueueName, check_name
from hopyard.domain.queue import Queue, QueueTree
from hopyard.errors import SpecError

TOP_KEYS = ("default", "half_life", "queues")
LIMIT_KEYS = ("guarantee", "maximum", "borrow_limit", "lend_limit", "user_limit")
QUEUE_KEYS = (
    "parent",
    "weight",
    *LIMIT_KEYS,
    "submitters",
    "admins",
    "priorities",
    "user_priorities",
    "default_priority",
    "reclaims",
    "preempts_lower",
    "time_slices",
    "no_preempt",
    "queues",
)
MAX_QUEUES, MAX_DEPTH = 1000, 16
WEIGHT_RANGE = 1e-6, 1e6  # the smallest and the largest
_PRIORITIES_HINT = "give the range of priorities with `priorities`"
_DEFAULT_QUEUE = Queue(QueueName(""))


def read_queues(file: Path) -> QueueTree:
    """Returns the tree that the file describes. Raises SpecError with the file and the path of the value."""
    return queue_tree_from(read_yaml(file))


def queue_tree_from(top: YamlSection) -> QueueTree:
    """Returns the tree of a mapping, as `read_queues` does."""
    top.check_keys(*TOP_KEYS)
    sections = _collect_sections(top)
    if not sections:
        raise top.error(
            "queues", "no queue is given", "a queue needs at least a name: `queues: {default: {}}`"
        )
    queues = {name: _read_queue(sections[name]) for name in _sort_parents_first(sections)}
    for name, entry in sections.items():
        if len(queue_path(QueueTree(queues), name)) > MAX_DEPTH:
            raise entry.section.error("parent", f"the tree is deeper than {MAX_DEPTH} levels")
    check_limits(queues, {name: entry.section for name, entry in sections.items()})
    half_life_s = top.amount("half_life", units.parse_time)
    tree = QueueTree(queues, _read_default(top, queues))
    return tree if half_life_s is None else QueueTree(queues, tree.default, half_life_s)


@dataclass(frozen=True, slots=True)
class _QueueSection:
    """A queue with its section of the file."""

    name: QueueName
    section: YamlSection
    parent: QueueName | None


def _collect_sections(top: YamlSection) -> dict[QueueName, _QueueSection]:
    sections: dict[QueueName, _QueueSection] = {}
    for entry in _walk_sections(top, None, 1):
        if (earlier := sections.get(entry.name)) is not None:
            raise SpecError(
                f"{top.file}: {entry.section.path}: there is a queue `{entry.name}` already, at "
                f"{earlier.section.path}",
                hints=("give each queue a unique name in the tree",),
            )
        sections[entry.name] = entry
        if len(sections) > MAX_QUEUES:
            raise top.error("queues", f"there are more than {MAX_QUEUES}")
    return sections


def _walk_sections(container: YamlSection, parent: QueueName | None, depth: int) -> Iterator[_QueueSection]:
    inside = container.section("queues")
    if inside.values and depth > MAX_DEPTH:
        raise container.error("queues", f"the tree is deeper than {MAX_DEPTH} levels")
    for key, value in inside.values.items():
        name = QueueName(inside.parsed(key, lambda k=key: check_name(k, subject="queues")))  # type: ignore[misc]
        section = as_section(inside.file, inside.path_of(key), value).check_keys(*QUEUE_KEYS)
        parent_name = section.text("parent")
        if parent_name and parent is not None and parent_name != parent:
            raise section.error(
                "parent",
                f"it stands below `{parent}` in the file, and names `{parent_name}`",
                "leave `parent` out of nested queues",
            )
        yield _QueueSection(name, section, QueueName(parent_name) if parent_name else parent)
        yield from _walk_sections(section, name, depth + 1)


def _sort_parents_first(sections: Mapping[QueueName, _QueueSection]) -> list[QueueName]:
    order: dict[QueueName, None] = {}
    for entry in sections.values():
        chain: list[QueueName] = []
        current: _QueueSection | None = entry
        while current is not None and current.name not in order:
            if current.name in chain:
                cycle = " → ".join([*chain[chain.index(current.name) :], current.name])
                raise entry.section.error(
                    "parent",
                    f"the parents of queues form a cycle: {cycle}",
                    "remove the parent of one of them",
                )
            chain.append(current.name)
            current = _ancestors(sections, current)
        order.update(dict.fromkeys(reversed(chain)))
    return list(order)


def _ancestors(sections: Mapping[QueueName, _QueueSection], entry: _QueueSection) -> _QueueSection | None:
    if entry.parent is None:
        return None
    if entry.parent not in sections:
        raise entry.section.error(
            "parent",
            f"there is no queue `{entry.parent}`",
            *unknown_name_hints(entry.parent, sections, subject="queues"),
        )
    return sections[entry.parent]


def _read_queue(entry: _QueueSection) -> Queue:
    section = entry.section
    low, high = priorities = (
        _read_priorities(section) if section.contains("priorities") else (MIN_PRIORITY, MAX_PRIORITY)
    )
    middle = min(max(_DEFAULT_QUEUE.default_priority, low), high)
    default_priority = section.integer("default_priority", middle, low=low, high=high, hint=_PRIORITIES_HINT)
    if not section.contains("priorities"):
        priorities = MIN_PRIORITY, default_priority  # higher priorities are granted per user
    return Queue(
        entry.name,
        entry.parent,
        _read_weight(section),
        read_amounts(section.section("guarantee")),
        read_amounts(section.section("maximum")),
        read_amounts(section.section("borrow_limit")),
        read_amounts(section.section("lend_limit")),
        read_amounts(section.section("user_limit")),
        submitters=_read_users(section, "submitters"),
        admins=_read_users(section, "admins"),
        priorities=priorities,
        default_priority=default_priority,
        reclaims=read_flag(section, "reclaims", default=_DEFAULT_QUEUE.reclaims),
        preempts_lower=read_flag(section, "preempts_lower", default=_DEFAULT_QUEUE.preempts_lower),
        time_slices=read_flag(section, "time_slices", default=_DEFAULT_QUEUE.time_slices),
        no_preempt=read_flag(section, "no_preempt", default=_DEFAULT_QUEUE.no_preempt),
        user_priorities=_read_user_priorities(section.section("user_priorities"), minimum=priorities[1]),
    )


def _read_weight(section: YamlSection) -> float:
    value = section.values.get("weight")
    if value is None:
        return _DEFAULT_QUEUE.weight
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not WEIGHT_RANGE[0] <= value <= WEIGHT_RANGE[1]
    ):
        raise section.error(
            "weight",
            f"{format_given(value)} is not a number above 0, from 0.000001 to 1000000",
            "a queue of weight 2 gets twice what one of weight 1 gets",
        )
    return float(value)


def _read_users(section: YamlSection, key: str) -> tuple[str, ...]:
    names: list[str] = []
    for index, value in section.items(key):
        path = f"{key}.{index}"
        if not isinstance(value, str):
            raise section.error(
                path, f"{format_given(value)} is not the name of a user", 'write it in quotes: "…"'
            )
        name = section.parsed(path, lambda text=value: check_name(text, subject=key))  # type: ignore[misc]
        if name in names:
            raise section.error(path, f"`{name}` is given twice", "remove one of them")
        names.append(name)
    return tuple(names)


def _read_priorities(section: YamlSection) -> tuple[int, int]:
    values: list[Any] = [value for _, value in section.items("priorities")]
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if not whole or len(values) != 2 or not MIN_PRIORITY <= values[0] <= values[1] <= MAX_PRIORITY:
        problem = (
            f"{format_given(values)} is not a lowest and a highest priority from {MIN_PRIORITY} to "
            f"{MAX_PRIORITY}"
        )
        raise section.error("priorities", problem, "for example `priorities: [0, 80]`")
    return values[0], values[1]


def _read_user_priorities(section: YamlSection, *, minimum: int) -> dict[str, int]:
    """Returns the highest priority of each user with a grant above the limit of all others."""
    priorities = {}
    for user in section.values:
        section.parsed(user, lambda name=user: check_name(name, subject="user"))  # type: ignore[misc]
        hint = f"`priorities` of the queue lets all users ask for up to {minimum}"
        if section.values[user] is None:
            raise section.error(user, "no priority is given", hint)
        priorities[user] = section.integer(
            user, MAX_PRIORITY, low=min(minimum + 1, MAX_PRIORITY), high=MAX_PRIORITY, hint=hint
        )
    return priorities


def _read_default(top: YamlSection, queues: Mapping[QueueName, Queue]) -> QueueName:
    tree = QueueTree(queues)
    children = child_queues(tree)
    leaves = [name for name in queues if name not in children]
    default = QueueName(top.text("default"))
    if default in children:
        leaf_names = ", ".join(name for name in leaves if default in queue_path(tree, name))
        raise top.error(
            "default",
            f"`{default}` has child queues, and runs wait only in queues without children",
            f"give one of {leaf_names}",
        )
    if default:
        if default not in queues:
            raise top.error(
                "default",
                f"there is no queue `{default}`",
                *unknown_name_hints(default, leaves, subject="queues without children"),
            )
        return default
    if len(leaves) == 1:
        return leaves[0]
    if DEFAULT_QUEUE in leaves:
        return DEFAULT_QUEUE
    raise top.error(
        "default", "the queue of runs without one is missing", f"give one of {', '.join(leaves[:20])}"
    )
