"""`hop why`: explains why a run waits, when it starts, and what would start it sooner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hopyard.cli.options import json_option, last_run_argument
from hopyard.cli.run_text import last_eviction_text
from hopyard.cli.terminal import console
from hopyard.client.run_lookup import get_run

if TYPE_CHECKING:
    from hopyard.api_client import types as api

WIDE_ESTIMATE_S = 86400.0  # a wider band is not useful
NARROW_ESTIMATE_FACTOR = 1.5  # a narrower band is shown as its middle
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
    from hopyard.client.ignore_check import failed_run_hint

    client = connect()
    run = get_run(client, ref)
    explanation = client.get_run_why(run["id"])
    if as_json:
        console.print_json(explanation)
        return
    nodes = (
        client.get_nodes()["nodes"]
        if explanation["expected"] is None and explanation["reason"] in _NODE_REASONS
        else []
    )
    console.print_lines(explanation_lines(explanation, run, nodes))
    if hint := failed_run_hint(client.get_run(run["id"])):
        console.print_line(hint)


def explanation_lines(
    explanation: api.WhyOut, run: api.RunOut, nodes: Sequence[api.NodeOut] = ()
) -> list[str]:
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
        lines += ["blocked by:", *map(blocker_text, explanation["blocked_by"])]
    lines += _cordoned_node_lines(run, nodes)
    lines += _unready_node_lines(run, nodes)
    lines += estimate_lines(explanation)
    lines += _promise_line(explanation)
    if explanation["what_if"]:
        lines += ["it would start", *(f"  {line['text']}" for line in explanation["what_if"])]
    return lines


def _previous_attempt_line(run: api.RunOut) -> list[str]:
    """Returns that an earlier attempt ran, and why it ended."""
    why, attempt = last_eviction_text(run), run.get("attempt")
    if not why or attempt is None:
        return []
    preempt_reason = attempt["preempt_reason"]
    return [
        f"  it has already run, attempt {attempt['number']}: {why}"
        + (f"; {preempt_reason}" if preempt_reason else "")
    ]


def blocker_text(blocker: api.BlockerOut) -> str:
    from hopyard.cli.terminal.times import format_clock, format_time_until

    ends = "until" if blocker["kind"] == "reservation" else "probably until"
    until = (
        f", {ends} {format_clock(blocker['until'])} ({format_time_until(blocker['until'])})"
        if blocker["until"]
        else ""
    )
    return f"  {blocker['kind']} {blocker['name']}{until}"


def _unready_node_lines(run: api.RunOut, nodes: Sequence[api.NodeOut]) -> list[str]:
    """Returns candidate nodes that are not ready because of their servers."""
    from hopyard.cli.terminal.times import localise_times

    places = [role["where"] for role in run["spec"]["roles"]]
    unready = [
        node for node in nodes if node["not_ready"] and any(_is_allowed(where, node) for where in places)
    ]
    lines = [
        f"  node {node['id']}: {localise_times(node['not_ready'])}" for node in unready[:_MAX_NODES_SHOWN]
    ]
    if len(unready) > _MAX_NODES_SHOWN:
        lines.append(f"  and {len(unready) - _MAX_NODES_SHOWN} more; `hop node ls` lists the nodes")
    return ["not ready:", *lines] if lines else []


def _cordoned_node_lines(run: api.RunOut, nodes: Sequence[api.NodeOut]) -> list[str]:
    """Returns cordoned candidate nodes, the reasons, and the command to uncordon them."""
    places = [role["where"] for role in run["spec"]["roles"]]
    cordoned = [
        node for node in nodes if node["cordoned"] and any(_is_allowed(where, node) for where in places)
    ]
    if not cordoned:
        return []
    lines = [
        f"  node {node['id']}" + (f": {node['cordon_reason']}" if node["cordon_reason"] else "")
        for node in cordoned[:_MAX_NODES_SHOWN]
    ]
    if len(cordoned) > _MAX_NODES_SHOWN:
        lines.append(f"  and {len(cordoned) - _MAX_NODES_SHOWN} more")
    which = cordoned[0]["id"] if len(cordoned) == 1 else "NODE"
    return [
        "cordoned:",
        *lines,
        f"  `hop node ls` lists the nodes; use `hop node uncordon {which}` to let runs start there",
    ]


def _is_allowed(where: api.NodeSelector, node: api.NodeOut) -> bool:
    return (not where["pools"] or node["pool"] in where["pools"]) and all(
        node["labels"].get(key) == value for key, value in where["labels"]
    )


def estimate_lines(explanation: api.WhyOut | api.PreviewOut) -> list[str]:
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
    return lines


def _promise_line(explanation: api.WhyOut) -> list[str]:
    from hopyard.cli.terminal.times import format_clock, seconds_until

    band, promised_at = explanation["expected"], explanation["promised_at"]
    if band is None or not promised_at:
        return []
    misses = seconds_until(band["mid_at"]) > seconds_until(promised_at) + IMMEDIATE_S
    late = (
        f"; it will probably be later: {explanation.get('late') or 'its resources are in use for longer'}"
        if misses
        else ""
    )
    return [f"promised: at the latest {format_clock(promised_at)}{late}"]
