"""`hop why`: why a run waits, when it starts, and what would let it start sooner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hopyard.cli import console
from hopyard.cli.address import Run, get_run, interrupted
from hopyard.cli.options import json_option, last_run_argument

Why = dict[str, Any]
Node = dict[str, Any]
WIDE_S = 86400.0  # so wide a band is of use to nobody
NARROW_S = 1.5  # so narrow a band says no more than its middle
A_MOMENT_S = 1.0  # a promise that is missed by less is kept
_FOR_WANT_OF_NODES = ("no-nodes", "no-capacity", "topology")  # reasons that nodes in service could end
_NODES = 5  # so many are named


@click.command("why")
@last_run_argument()
@json_option
def why(ref: str, as_json: bool) -> None:
    """Tell why RUN waits, what is in its way, when it is expected to start, and what it could ask for to
    start sooner.

    Each "it would start" line was tried on the state of this moment. Without RUN the newest one is meant.
    """
    from hopyard.sdk.connect import connect

    client = connect()
    run = get_run(client, ref)
    found: Why = client.get(f"/runs/{run['id']}/why")
    if as_json:
        console.out_json(found)
        return
    nodes = (
        client.get("/nodes")["nodes"]
        if found["expected"] is None and found["reason"] in _FOR_WANT_OF_NODES
        else []
    )
    console.out_lines(lines_of(found, run, nodes))


def lines_of(found: Why, run: Run, nodes: Sequence[Node] = ()) -> list[str]:
    """What people read. nodes: those there are, where some that are cordoned or not ready may be what it
    waits for."""
    from hopyard.cli.times import localised

    if not found["reason"]:
        return [f"{found['name']}: {localised(found['detail'])}"]

    place = f", position {found['position']} of {found['waiting']}" if found["position"] else ""
    lines = [
        f"{found['name']} waits in queue {found['queue']}{place}",
        f"  {localised(found['detail'])} [{found['reason']}]",
    ]
    lines += _before(run)
    if found["blocked_by"]:
        lines += ["in its way:", *map(_blocker, found["blocked_by"])]
    lines += _cordoned(run, nodes)
    lines += _not_ready(run, nodes)
    lines += _expected(found)
    if found["what_if"]:
        lines += ["it would start", *(f"  {line['text']}" for line in found["what_if"])]
    return lines


def _before(run: Run) -> list[str]:
    """That it ran already, and what ended that."""
    why = interrupted(run)
    if not why:
        return []
    asked = run["attempt"]["preempt_reason"]
    return [f"  it ran already, attempt {run['attempt']['number']}: {why}" + (f"; {asked}" if asked else "")]


def _blocker(one: dict[str, Any]) -> str:
    from hopyard.cli.times import clock, soon

    ends = "until" if one["kind"] == "reservation" else "probably until"
    until = f", {ends} {clock(one['until'])} ({soon(one['until'])})" if one["until"] else ""
    return f"  {one['kind']} {one['name']}{until}"


def _not_ready(run: Run, nodes: Sequence[Node]) -> list[str]:
    """Nodes on which it may be, and that are not ready because of their servers."""
    from hopyard.cli.times import localised

    places = [role["where"] for role in run["spec"]["roles"]]
    found = [node for node in nodes if node["not_ready"] and any(_allows(where, node) for where in places)]
    lines = [f"  node {node['id']}: {localised(node['not_ready'])}" for node in found[:_NODES]]
    if len(found) > _NODES:
        lines.append(f"  and {len(found) - _NODES} more; `hop node ls` lists the nodes")
    return ["not ready:", *lines] if lines else []


def _cordoned(run: Run, nodes: Sequence[Node]) -> list[str]:
    """Cordoned nodes on which it may be, whether it fits there or not, why they are cordoned, and the way
    out."""
    places = [role["where"] for role in run["spec"]["roles"]]
    found = [node for node in nodes if node["cordoned"] and any(_allows(where, node) for where in places)]
    if not found:
        return []
    lines = [
        f"  node {node['id']}" + (f": {node['cordon_reason']}" if node["cordon_reason"] else "")
        for node in found[:_NODES]
    ]
    if len(found) > _NODES:
        lines.append(f"  and {len(found) - _NODES} more")
    which = found[0]["id"] if len(found) == 1 else "NODE"
    return [
        "cordoned:",
        *lines,
        f"  `hop node ls` lists the nodes; `hop node uncordon {which}` lets runs start there again",
    ]


def _allows(where: dict[str, Any], node: Node) -> bool:
    return (not where["pools"] or node["pool"] in where["pools"]) and all(
        node["labels"].get(key) == value for key, value in where["labels"]
    )


def _expected(found: Why) -> list[str]:
    from hopyard.cli.times import clock, clocks, seconds_to, soon

    band = found["expected"]
    if band is None:
        return ["expected start: not as things are"]
    low, mid, high = band["low_at"], band["mid_at"], band["high_at"]
    wide_s = seconds_to(high) - seconds_to(low)
    lines = [f"expected start: {clock(mid)} ({soon(mid)})"]
    if wide_s > NARROW_S:
        begin, probably, end = clocks(low, mid, high)
        lines = [f"expected start: {probably} ({soon(mid)}), between {begin} and {end}"]
    if found.get("unknown"):
        lines.append(
            f"  a guess: {found['unknown']}; `hop run --time` sets a limit, and narrows this for all "
            "runs behind it"
        )
    elif wide_s > WIDE_S:
        lines.append(
            "  a wide estimate: runs before it have no time limit; `hop run --time` sets one, and "
            "narrows this for all behind it"
        )
    if found["promised_at"]:
        misses = seconds_to(mid) > seconds_to(found["promised_at"]) + A_MOMENT_S
        late = (
            f"; it will probably be later: {found.get('late') or 'what it waits for takes longer'}"
            if misses
            else ""
        )
        lines.append(f"promised: at the latest {clock(found['promised_at'])}{late}")
    return lines
