"""The tree of queues in a file, nested or flat, and back.

```yaml
default: vision                 # where a run goes that names no queue
half_life: 7d                   # after so long, past use counts half
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
from hopyard.config.amounts import read_amounts
from hopyard.config.queuechecks import check_limits
from hopyard.config.reader import Section, read_yaml, section, shown
from hopyard.config.suggest import hints_for
from hopyard.config.values import read_flag
from hopyard.domain.ids import DEFAULT_QUEUE, QueueName, check_name
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.quota import children, path
from hopyard.errors import SpecError

TOP_KEYS = ("default", "half_life", "queues")
LIMITS = ("guarantee", "maximum", "borrow_limit", "lend_limit", "user_limit")
QUEUE_KEYS = (
    "parent",
    "weight",
    *LIMITS,
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
WEIGHTS = 1e-6, 1e6  # the smallest and the largest
LOWEST, HIGHEST = 0, 100
_PRIORITIES_HINT = "`priorities` says from where to where"
_PLAIN = Queue(QueueName(""))


def read_queues(file: Path) -> QueueTree:
    """The tree that the file describes. Raises SpecError with the file and the path of what is wrong in
    it."""
    return tree_of(read_yaml(file))


def tree_of(top: Section) -> QueueTree:
    """As `read_queues`, of a mapping that was read already."""
    top.only(*TOP_KEYS)
    found = _collected(top)
    if not found:
        raise top.fail("queues", "there is none", "a queue needs at least a name: `queues: {default: {}}`")
    queues = {name: _queue(found[name]) for name in _parents_first(found)}
    for name, one in found.items():
        if len(path(QueueTree(queues), name)) > MAX_DEPTH:
            raise one.given.fail("parent", f"the tree is deeper than {MAX_DEPTH} levels")
    check_limits(queues, {name: one.given for name, one in found.items()})
    half_life_s = top.amount("half_life", units.parse_time)
    tree = QueueTree(queues, _default(top, queues))
    return tree if half_life_s is None else QueueTree(queues, tree.default, half_life_s)


@dataclass(frozen=True, slots=True)
class _Found:
    """A queue where it stands in the file."""

    name: QueueName
    given: Section
    parent: QueueName | None


def _collected(top: Section) -> dict[QueueName, _Found]:
    found: dict[QueueName, _Found] = {}
    for one in _walk(top, None, 1):
        if (other := found.get(one.name)) is not None:
            raise SpecError(
                f"{top.file}: {one.given.path}: there is a queue `{one.name}` already, at {other.given.path}",
                hints=("names of queues are unique in the whole tree",),
            )
        found[one.name] = one
        if len(found) > MAX_QUEUES:
            raise top.fail("queues", f"there are more than {MAX_QUEUES}")
    return found


def _walk(above: Section, parent: QueueName | None, depth: int) -> Iterator[_Found]:
    inside = above.section("queues")
    if inside.values and depth > MAX_DEPTH:
        raise above.fail("queues", f"the tree is deeper than {MAX_DEPTH} levels")
    for key, value in inside.values.items():
        name = QueueName(inside.checked(key, lambda k=key: check_name(k, what="queues")))  # type: ignore[misc]
        given = section(inside.file, inside.at(key), value).only(*QUEUE_KEYS)
        named = given.text("parent")
        if named and parent is not None and named != parent:
            raise given.fail(
                "parent",
                f"it stands below `{parent}` in the file, and names `{named}`",
                "leave `parent` out of nested queues",
            )
        yield _Found(name, given, QueueName(named) if named else parent)
        yield from _walk(given, name, depth + 1)


def _parents_first(found: Mapping[QueueName, _Found]) -> list[QueueName]:
    order: dict[QueueName, None] = {}
    for one in found.values():
        line: list[QueueName] = []
        at: _Found | None = one
        while at is not None and at.name not in order:
            if at.name in line:
                circle = " → ".join([*line[line.index(at.name) :], at.name])
                raise one.given.fail(
                    "parent",
                    f"the queues stand below each other in a circle: {circle}",
                    "one of them has no parent",
                )
            line.append(at.name)
            at = _above(found, at)
        order.update(dict.fromkeys(reversed(line)))
    return list(order)


def _above(found: Mapping[QueueName, _Found], one: _Found) -> _Found | None:
    if one.parent is None:
        return None
    if one.parent not in found:
        raise one.given.fail(
            "parent", f"there is no queue `{one.parent}`", *hints_for(one.parent, found, what="queues")
        )
    return found[one.parent]


def _queue(one: _Found) -> Queue:
    given = one.given
    low, high = priorities = _priorities(given) if given.has("priorities") else (LOWEST, HIGHEST)
    middle = min(max(_PLAIN.default_priority, low), high)
    default_priority = given.whole("default_priority", middle, low=low, high=high, hint=_PRIORITIES_HINT)
    if not given.has("priorities"):
        priorities = LOWEST, default_priority  # higher ones are granted, not taken
    return Queue(
        one.name,
        one.parent,
        _weight(given),
        read_amounts(given.section("guarantee")),
        read_amounts(given.section("maximum")),
        read_amounts(given.section("borrow_limit")),
        read_amounts(given.section("lend_limit")),
        read_amounts(given.section("user_limit")),
        submitters=_users(given, "submitters"),
        admins=_users(given, "admins"),
        priorities=priorities,
        default_priority=default_priority,
        reclaims=read_flag(given, "reclaims", default=_PLAIN.reclaims),
        preempts_lower=read_flag(given, "preempts_lower", default=_PLAIN.preempts_lower),
        time_slices=read_flag(given, "time_slices", default=_PLAIN.time_slices),
        no_preempt=read_flag(given, "no_preempt", default=_PLAIN.no_preempt),
        user_priorities=_user_priorities(given.section("user_priorities"), above=priorities[1]),
    )


def _weight(given: Section) -> float:
    value = given.values.get("weight")
    if value is None:
        return _PLAIN.weight
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not WEIGHTS[0] <= value <= WEIGHTS[1]
    ):
        raise given.fail(
            "weight",
            f"{shown(value)} is not a number above 0, from 0.000001 to 1000000",
            "a queue of weight 2 gets twice what one of weight 1 gets",
        )
    return float(value)


def _users(given: Section, key: str) -> tuple[str, ...]:
    names: list[str] = []
    for at, value in given.items(key):
        where = f"{key}.{at}"
        if not isinstance(value, str):
            raise given.fail(where, f"{shown(value)} is not the name of a user", 'write it in quotes: "…"')
        name = given.checked(where, lambda text=value: check_name(text, what=key))  # type: ignore[misc]
        if name in names:
            raise given.fail(where, f"`{name}` is named twice", "leave one of them out")
        names.append(name)
    return tuple(names)


def _priorities(given: Section) -> tuple[int, int]:
    values: list[Any] = [value for _, value in given.items("priorities")]
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if not whole or len(values) != 2 or not LOWEST <= values[0] <= values[1] <= HIGHEST:
        problem = f"{shown(values)} is not a lowest and a highest priority from {LOWEST} to {HIGHEST}"
        raise given.fail("priorities", problem, "for example `priorities: [0, 80]`")
    return values[0], values[1]


def _user_priorities(given: Section, *, above: int) -> dict[str, int]:
    """The highest priority of each user with a grant above that of all others."""
    found = {}
    for user in given.values:
        given.checked(user, lambda name=user: check_name(name, what="user"))  # type: ignore[misc]
        hint = f"`priorities` of the queue lets all users ask for up to {above}"
        if given.values[user] is None:
            raise given.fail(user, "no priority is given", hint)
        found[user] = given.whole(user, HIGHEST, low=min(above + 1, HIGHEST), high=HIGHEST, hint=hint)
    return found


def _default(top: Section, queues: Mapping[QueueName, Queue]) -> QueueName:
    tree = QueueTree(queues)
    below = children(tree)
    leaves = [name for name in queues if name not in below]
    named = QueueName(top.text("default"))
    if named in below:
        inside = ", ".join(name for name in leaves if named in path(tree, name))
        raise top.fail(
            "default", f"`{named}` has queues below it, and runs wait in those only", f"name one of {inside}"
        )
    if named:
        if named not in queues:
            raise top.fail(
                "default",
                f"there is no queue `{named}`",
                *hints_for(named, leaves, what="queues without others below"),
            )
        return named
    if len(leaves) == 1:
        return leaves[0]
    if DEFAULT_QUEUE in leaves:
        return DEFAULT_QUEUE
    raise top.fail(
        "default", "which queue takes runs that name none?", f"name one of {', '.join(leaves[:20])}"
    )
