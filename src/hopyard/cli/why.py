"""`hop why`: why a run waits, when it starts, and what would let it start sooner."""

from __future__ import annotations

from typing import Any

import click

from hopyard.cli import console
from hopyard.cli.address import Run, get_run, interrupted
from hopyard.cli.options import json_option, last_run_argument

Why = dict[str, Any]
WIDE_S = 86400.0  # so wide a band is of use to nobody
A_MOMENT_S = 1.0  # a promise that is missed by less is kept


@click.command("why")
@last_run_argument()
@json_option
def why(ref: str, as_json: bool) -> None:
    """Tell why RUN waits, what is in its way, when it is expected to start, and what it could ask for to start sooner.

    Each "it would start" line was tried on the state of this moment. Without RUN the newest one is meant.
    """
    from hopyard.sdk.connect import connect

    client = connect()
    run = get_run(client, ref)
    found: Why = client.get(f"/runs/{run['id']}/why")
    if as_json:
        console.out_json(found)
    else:
        console.out("\n".join(lines_of(found, run)))


def lines_of(found: Why, run: Run) -> list[str]:
    """What people read."""
    if not found["reason"]:
        return [f"{found['name']}: {found['detail']}"]
    place = f", position {found['position']} of {found['waiting']}" if found["position"] else ""
    lines = [f"{found['name']} waits in queue {found['queue']}{place}", f"  {found['detail']} [{found['reason']}]"]
    lines += _before(run)
    if found["blocked_by"]:
        lines += ["in its way:", *map(_blocker, found["blocked_by"])]
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


def _expected(found: Why) -> list[str]:
    from hopyard.cli.times import clock, seconds_to, soon

    band = found["expected"]
    if band is None:
        return ["expected start: not as things are"]
    times = [clock(band[key]) for key in ("low_at", "mid_at", "high_at")]
    spread = f", between {times[0]} and {times[2]}" if times[0] != times[2] else ""
    lines = [f"expected start: {times[1]} ({soon(band['mid_at'])}){spread}"]
    if seconds_to(band["high_at"]) - seconds_to(band["low_at"]) > WIDE_S:
        lines.append("  how long those before it take is known no better; `hop run --time` tells, and narrows this for all behind it")
    if found["promised_at"]:
        misses = seconds_to(band["mid_at"]) > seconds_to(found["promised_at"]) + A_MOMENT_S
        late = "; it will probably be later, since what it waits for takes longer" if misses else ""
        lines.append(f"promised: at the latest {clock(found['promised_at'])}{late}")
    return lines
