"""`hop why`: explains why a run waits, when it starts, and what would start it sooner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hopyard.cli.options import json_option, last_run_argument
from hopyard.cli.run_text import Run, last_eviction_text
from hopyard.cli.terminal import console
from hopyard.client.run_lookup import get_run

Explanation = dict[str, Any]
Node = dict[str, Any]
WIDE_ESTIMATE_S = 86400.0  # so wide a band is of use to nobody
NARROW_ESTIMATE_FACTOR = 1.5  # so narrow a band says no more than its middle
IMMEDIATE_S = 1.0  # a promise that is missed by less is kept
_NODE_REASONS = ("no-nodes", "no-capacity", "topology")  # reasons that nodes in service could end
_MAX_NODES_SHOWN = 5  # so many are named


@click.command("why")
@last_run_argument()
@json_option
def why(ref: str, as_json: bool) -> None:
    """Explain why RUN waits, what blocks it, its expected start, and what request would start sooner.

    Each "it would start" line was tested on the state of this moment. The default is the newest run.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    run = get_run(client, ref)
    found: Explanation = client.get(f"/runs/{run['id']}/why")
    if as_json:
        console.print_json(found)
        return
    nodes = (
        client.get("/nodes")["nodes"]
        if found["expected"] is None and found["reason"] in _NODE_REASONS
        else []
    )
    console.print_lines(explanation_lines(found, run, nodes))


def explanation_lines(explanation: Explanation, run: Run, nodes: Sequence[Node] = ()) -> list[str]:
    """Returns the text for people. nodes: all nodes, if the run may wait for a cordoned or unready one."""
    from hopyard.cli.terminal.times import localise_times

    if not explanation["reason"]:
        return [f"{explanation['name']}: {localise_times(explanation['detail'])}"]

    place = (
        f", position {explanation['position']} of {explanation['waiting']}" if explanation["position"] else ""
    )
    lines = [
        f"{explanation['name']} waits in queue {explanation['queue']}{place}",
        f"  {localise_times(explanation['detail'])} [{explanation['reason']}]",
    ]
    lines += _previous_attempt_line(run)
    if explanation["blocked_by"]:
        lines += ["blocked by:", *map(_blocker_text, explanation["blocked_by"])]
    lines += _cordoned_node_lines(run, nodes)
    lines += _unready_node_lines(run, nodes)
    lines += _estimate_line(explanation)
    if explanation["what_if"]:
        lines += ["it would start", *(f"  {line['text']}" for line in explanation["what_if"])]
    return lines


def _previous_attempt_line(run: Run) -> list[str]:
    """Returns that an earlier attempt ran, and why it ended."""
    why = last_eviction_text(run)
    if not why:
        return []
    asked = run["attempt"]["preempt_reason"]
    return [
        f"  it has already run, attempt {run['attempt']['number']}: {why}" + (f"; {asked}" if asked else "")
    ]


def _blocker_text(blocker: dict[str, Any]) -> str:
    from hopyard.cli.terminal.times import format_clock, format_time_until

    ends = "until" if blocker["kind"] == "reservation" else "probably until"
    until = (
        f", {ends} {format_clock(blocker['until'])} ({format_time_until(blocker['until'])})"
        if blocker["until"]
        else ""
    )
    return f"  {blocker['kind']} {blocker['name']}{until}"


def _unready_node_lines(run: Run, nodes: Sequence[Node]) -> list[str]:
    """Returns candidate nodes that are not ready because of their servers."""
    from hopyard.cli.terminal.times import localise_times

    places = [role["where"] for role in run["spec"]["roles"]]
    found = [
        node for node in nodes if node["not_ready"] and any(_is_allowed(where, node) for where in places)
    ]
    lines = [f"  node {node['id']}: {localise_times(node['not_ready'])}" for node in found[:_MAX_NODES_SHOWN]]
    if len(found) > _MAX_NODES_SHOWN:
        lines.append(f"  and {len(found) - _MAX_NODES_SHOWN} more; `hop node ls` lists the nodes")
    return ["not ready:", *lines] if lines else []


def _cordoned_node_lines(run: Run, nodes: Sequence[Node]) -> list[str]:
    """Returns cordoned candidate nodes, the reasons, and the command to uncordon them."""
    places = [role["where"] for role in run["spec"]["roles"]]
    found = [node for node in nodes if node["cordoned"] and any(_is_allowed(where, node) for where in places)]
    if not found:
        return []
    lines = [
        f"  node {node['id']}" + (f": {node['cordon_reason']}" if node["cordon_reason"] else "")
        for node in found[:_MAX_NODES_SHOWN]
    ]
    if len(found) > _MAX_NODES_SHOWN:
        lines.append(f"  and {len(found) - _MAX_NODES_SHOWN} more")
    which = found[0]["id"] if len(found) == 1 else "NODE"
    return [
        "cordoned:",
        *lines,
        f"  `hop node ls` lists the nodes; use `hop node uncordon {which}` to let runs start there",
    ]


def _is_allowed(where: dict[str, Any], node: Node) -> bool:
    return (not where["pools"] or node["pool"] in where["pools"]) and all(
        node["labels"].get(key) == value for key, value in where["labels"]
    )


def _estimate_line(explanation: Explanation) -> list[str]:
    from hopyard.cli.terminal.times import format_clock, format_clocks, format_time_until, seconds_until

    band = explanation["expected"]
    if band is None:
        return ["expected start: never under present conditions"]
    low, mid, high = band["low_at"], band["mid_at"], band["high_at"]
    wide_s = seconds_until(high) - seconds_until(low)
    lines = [f"expected start: {format_clock(mid)} ({format_time_until(mid)})"]
    if wide_s > NARROW_ESTIMATE_FACTOR:
        begin, probably, end = format_clocks(low, mid, high)
        lines = [f"expected start: {probably} ({format_time_until(mid)}), between {begin} and {end}"]
    if explanation.get("unknown"):
        lines.append(
            f"  Wide estimate: {explanation['unknown']}. Use `hop run --time` to set limits and narrow it."
        )
    elif wide_s > WIDE_ESTIMATE_S:
        lines.append("  Wide estimate: the runs ahead set no time limit. Use `hop run --time` to narrow it.")
    if explanation["promised_at"]:
        misses = seconds_until(mid) > seconds_until(explanation["promised_at"]) + IMMEDIATE_S
        late = (
            f"; it will probably be later: {explanation.get('late') or 'its resources are in use for longer'}"
            if misses
            else ""
        )
        lines.append(f"promised: at the latest {format_clock(explanation['promised_at'])}{late}")
    return lines
