"""How queues are shown to people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from hopyard.cli import console
from hopyard.cli.reserve import brief
from hopyard.config.amounts import spelled, value
from hopyard.config.units import format_time
from hopyard.domain.queue import CPU, GPU, MEMORY

_BAR = 10


def table_of(found: dict[str, Any]) -> list[str]:
    """The tree, a line for each queue, with the resources that somebody limits and those that are used
    without that."""
    queues = found["queues"]
    named = _named(queues)
    rows = [
        [
            "  " * one["depth"] + one["name"] + ("" if one["declared"] else " (removed)"),
            amounts(one["guarantee"], named),
            amounts(one["used"], named),
            f"{bar(one['share'])} {one['share']:4.0%}",
            amounts(one["borrowed"], named),
            amounts(one["lent"], named),
            str(one["running"]),
            str(one["waiting"]),
        ]
        for one in queues
    ]
    head = ["QUEUE", "GUARANTEE", "USED", "SHARE", "BORROWED", "LENT", "RUNNING", "WAITING"]
    kept = [i for i in range(len(head)) if i not in (1, 4, 5) or any(row[i] != "-" for row in rows)]
    numbers = [place for place, i in enumerate(kept) if i >= 6]
    lines = console.table([head[i] for i in kept], [[row[i] for i in kept] for row in rows], right=numbers)
    return [*lines, console.paint(f"runs that name no queue wait in {found['default']}", "dim")]


def lines_of(one: dict[str, Any], *, half_life_s: float, owner: str) -> list[str]:
    """Everything about one queue."""
    low, high = one["priorities"]
    who = ", ".join(one["submitters"]) or "everybody"
    habits = [text for text, on in _habits(one) if on]
    lines = [
        (
            "queue",
            one["name"] + ("" if one["declared"] else " (removed: what runs in it goes on, nothing starts)"),
        ),
        ("below", one["parent"] or ""),
        ("guarantee", amounts(one["guarantee"])),
        ("maximum", amounts(one["maximum"])),
        ("may borrow", amounts(one["borrow_limit"])),
        ("may lend", amounts(one["lend_limit"])),
        ("per user", amounts(one["user_limit"])),
        ("weight", f"{one['weight']:g}"),
        ("used", amounts(one["used"])),
        ("share", f"{bar(one['share'])} {one['share']:.1%} of the cluster"),
        ("borrowed", amounts(one["borrowed"])),
        ("lent", amounts(one["lent"])),
        ("runs", f"{one['running']} running, {one['waiting']} waiting"),
        (
            "priorities",
            f"{low} to {high}, {one['default_priority']} without one"
            + "".join(f"; {user} up to {highest}" for user, highest in one["user_priorities"].items()),
        ),
        ("habits", "; ".join(habits)),
        ("submitters", who),
        ("admins", ", ".join(dict.fromkeys([*one["admins"], owner]))),
        *(
            ("reserved" if at == 0 else "", brief(found))
            for at, found in enumerate(one.get("reservations") or [])
        ),
    ]
    told = [f"{label:<11} {text}" for label, text in lines if text not in ("", "-")]
    return told + _users(one.get("users") or [], half_life_s)


def amounts(of: Mapping[str, int], only: Iterable[str] | None = None) -> str:
    """`gpus 4, cpus 16, memory 64G`; `-` for none."""
    names = sorted(
        (name for name in of if only is None or name in only),
        key=lambda name: ({GPU: 0, CPU: 2, MEMORY: 3}.get(name, 1), name),
    )
    return ", ".join(f"{spelled(name)} {value(name, of[name])}" for name in names) or "-"


def bar(share: float) -> str:
    full = min(round(share * _BAR), _BAR) if share < 1 else _BAR
    return "#" * full + "." * (_BAR - full)


def _named(queues: list[dict[str, Any]]) -> set[str]:
    limits = ("guarantee", "maximum", "user_limit")
    named = {name for one in queues for key in limits for name in one[key]}
    return named | {name for name in (GPU, CPU) if any(one["used"].get(name) for one in queues)}


def _habits(one: dict[str, Any]) -> list[tuple[str, bool]]:
    return [
        ("takes back what it lent", one["reclaims"]),
        ("higher priorities preempt lower ones", one["preempts_lower"]),
        ("runs that were served long give way", one["time_slices"]),
        ("its runs may always be preempted", not one["no_preempt"]),
    ]


def _users(users: list[dict[str, Any]], half_life_s: float) -> list[str]:
    if not users:
        return []
    rows = [
        [
            one["user"],
            amounts(one["used"]),
            f"{one['share']:.1%}",
            f"{one['past_share']:.1%}",
            str(one["running"]),
            str(one["waiting"]),
        ]
        for one in users
    ]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    table = console.table(
        ["USER", "USED", "SHARE", "PAST", "RUNNING", "WAITING"], rows, right=(2, 3, 4, 5), width=width
    )
    said = (
        f"users in the order in which they come next; past use counts half every {format_time(half_life_s)}"
    )
    return ["", *table, console.paint(said, "dim")]
