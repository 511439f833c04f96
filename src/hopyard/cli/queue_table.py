"""Tables of queues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from hopyard.cli.reserve import brief_text
from hopyard.cli.terminal import console
from hopyard.config.resource_amounts import amount_value, resource_key
from hopyard.config.units import format_time
from hopyard.domain.queue import CPU, GPU, MEMORY

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_BAR_CELLS = 10


def queue_table(listing: api.QueuesOut) -> list[str]:
    """Returns the tree, one line per queue, with the resources that are limited or used."""
    queues = listing["queues"]
    named = _named_queues(queues)
    rows = [
        [
            "  " * queue["depth"] + queue["name"] + ("" if queue["declared"] else " (removed)"),
            amounts_text(queue["guarantee"], named),
            amounts_text(queue["used"], named),
            f"{utilisation_bar(queue['share'])} {queue['share']:4.0%}",
            amounts_text(queue["borrowed"], named),
            amounts_text(queue["lent"], named),
            str(queue["running"]),
            str(queue["waiting"]),
        ]
        for queue in queues
    ]
    head = ["QUEUE", "GUARANTEE", "USED", "SHARE", "BORROWED", "LENT", "RUNNING", "WAITING"]
    columns = [i for i in range(len(head)) if i not in (1, 4, 5) or any(row[i] != "-" for row in rows)]
    numbers = [place for place, i in enumerate(columns) if i >= 6]
    lines = console.format_table(
        [head[i] for i in columns], [[row[i] for i in columns] for row in rows], right=numbers
    )
    return [*lines, console.paint(f"runs without a queue wait in {listing['default']}", "dim")]


def queue_lines(queue: api.QueueOut, *, half_life_s: float, owner: str) -> list[str]:
    """Returns all details of one queue."""
    low, high = queue["priorities"]
    submitters = ", ".join(queue["submitters"]) or "all users"
    rules = [text for text, on in _preemption_rules(queue) if on]
    lines = [
        (
            "queue",
            queue["name"] + ("" if queue["declared"] else " (removed: its runs continue, no run starts)"),
        ),
        ("below", queue["parent"] or ""),
        ("guarantee", amounts_text(queue["guarantee"])),
        ("maximum", amounts_text(queue["maximum"])),
        ("may borrow", amounts_text(queue["borrow_limit"])),
        ("may lend", amounts_text(queue["lend_limit"])),
        ("per user", amounts_text(queue["user_limit"])),
        ("weight", f"{queue['weight']:g}"),
        ("used", amounts_text(queue["used"])),
        ("share", f"{utilisation_bar(queue['share'])} {queue['share']:.1%} of the cluster"),
        ("borrowed", amounts_text(queue["borrowed"])),
        ("lent", amounts_text(queue["lent"])),
        ("runs", f"{queue['running']} running, {queue['waiting']} waiting"),
        ("compared", queue.get("why") or ""),
        (
            "priorities",
            f"{low} to {high}, by default {queue['default_priority']}"
            + "".join(f"; {user} up to {highest}" for user, highest in queue["user_priorities"].items()),
        ),
        ("preemption", "; ".join(rules)),
        ("submitters", submitters),
        ("admins", ", ".join(dict.fromkeys([*queue["admins"], owner]))),
        *(
            ("reserved" if at == 0 else "", brief_text(reservation))
            for at, reservation in enumerate(queue.get("reservations") or [])
        ),
    ]
    shown = [f"{label:<11} {text}" for label, text in lines if text not in ("", "-")]
    return shown + _user_lines(queue.get("users") or [], half_life_s)


def waiting_table(runs: list[api.RunOut]) -> list[str]:
    """Returns the lines of the table, head first, in the given order."""
    from hopyard.cli.terminal.times import format_clock, localise_times

    rows = [
        [
            str(run["position"] or "-"),
            run["name"],
            run["spec"].get("queue") or "",
            _start_text(run, format_clock),
            localise_times(run["hold_detail"]) or "no cycle of the scheduler has seen it yet",
        ]
        for run in runs
    ]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.format_table(
        ["POSITION", "RUN", "QUEUE", "EXPECTED START", "REASON"], rows, right=(0,), width=width
    )


def _start_text(run: api.RunOut, format_clock: Callable[[str], str]) -> str:
    if run["expected_at"]:
        return format_clock(run["expected_at"])
    return f"by {format_clock(run['promised_at'])}" if run["promised_at"] else "-"


def amounts_text(of: Mapping[str, int], only: Iterable[str] | None = None) -> str:
    """`gpus 4, cpus 16, memory 64G`; `-` for none."""
    names = sorted(
        (name for name in of if only is None or name in only),
        key=lambda name: ({GPU: 0, CPU: 2, MEMORY: 3}.get(name, 1), name),
    )
    return ", ".join(f"{resource_key(name)} {amount_value(name, of[name])}" for name in names) or "-"


def utilisation_bar(share: float) -> str:
    full = min(round(share * _BAR_CELLS), _BAR_CELLS) if share < 1 else _BAR_CELLS
    return "#" * full + "." * (_BAR_CELLS - full)


def _named_queues(queues: list[api.QueueOut]) -> set[str]:
    named = {
        name for queue in queues for name in (*queue["guarantee"], *queue["maximum"], *queue["user_limit"])
    }
    return named | {name for name in (GPU, CPU) if any(queue["used"].get(name) for queue in queues)}


def _preemption_rules(queue: api.QueueOut) -> list[tuple[str, bool]]:
    return [
        ("reclaims what it lent", queue["reclaims"]),
        ("higher priorities preempt lower ones", queue["preempts_lower"]),
        ("runs that have run long can be preempted (time slices)", queue["time_slices"]),
        ("its runs can always be preempted", not queue["no_preempt"]),
    ]


def _user_lines(users: list[api.QueueUserOut], half_life_s: float) -> list[str]:
    if not users:
        return []
    rows = [
        [
            user["user"],
            amounts_text(user["used"]),
            f"{user['share']:.1%}",
            f"{user['past_share']:.1%}",
            str(user["running"]),
            str(user["waiting"]),
        ]
        for user in users
    ]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    table = console.format_table(
        ["USER", "USED", "SHARE", "PAST", "RUNNING", "WAITING"], rows, right=(2, 3, 4, 5), width=width
    )
    heading = f"users in their order for the next start; past usage halves every {format_time(half_life_s)}"
    return ["", *table, console.paint(heading, "dim")]
