"""How runs are told: their name, their address, their place in the queue, their end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.cli.console import number, seconds_since, span
from hopyard.domain.replica import RUN_TOKEN
from hopyard.sdk.client import API, Client

Run = dict[str, Any]
_LATE_S = 2.0  # what was expected to start so long ago is late: to start takes a moment, too


def get_run(client: Client, ref: str) -> Run:
    """The run that `ref` names: an id, a name, a number, a label or `last`. A number is first one of the
    current folder's project. Raises NotFound with close names, SpecError for a number of several projects."""
    own = os.environ.get("HOPYARD_RUN_ID")
    if own and client.token.startswith(RUN_TOKEN) and ref in (own, os.environ.get("HOPYARD_RUN")):
        run: Run = client.get(f"/runs/{own}")  # a run's own token may look up no other
    else:
        run = client.get(
            "/runs/resolve", ref=ref, project=_project_here() if ref.strip().isdecimal() else None
        )
    return run


def _project_here() -> str | None:
    """The project of what `hop run` starts in the current folder; None in a folder that was deleted."""
    from hopyard.config.runspec import project_of

    try:
        return project_of(Path.cwd())
    except FileNotFoundError:
        return None


def address(client: Client, run: Run) -> str:
    return f"{client.url}{API}/runs/by-name/{run['name']}"


def final(run: Run) -> bool:
    return run["phase"] in ("succeeded", "failed", "cancelled")


def being_synced(run: Run) -> str:
    """Of a run that was recorded offline, as long as not all of it has come: `being synced, last part came 3
    min ago`; "" of others."""
    if not run.get("offline") or final(run):
        return ""
    from hopyard.cli.console import age, seconds_since

    came = run.get("synced_at")
    return (
        "being synced"
        + (f", last part came {age(seconds_since(came))} ago" if came else "")
        + "; `hop sync` sends the rest"
    )


def standing(run: Run) -> str:
    """What a run that was just accepted is about to do: `starts at once`, or its place in the queue and why
    it waits."""
    if run["phase"] != "queued":
        size = size_of(run, run.get("attempt"))
        return (
            "starts at once" + (f" as {size}" if size else "")
            if run["phase"] in ("starting", "running")
            else str(run["phase"])
        )
    return queued(run, "queued")


def size_of(run: Run, attempt: Mapping[str, Any] | None) -> str:
    """Of an elastic run, how many replicas an attempt has: `4 replicas`, `4 replicas (chief 1, worker 3)`; ""
    of others, whose size is what they asked for."""
    roles, counts = run["spec"]["roles"], (attempt or {}).get("counts") or ()
    if not counts or not any(role["min_replicas"] for role in roles):
        return ""
    each = ", ".join(f"{role['name']} {count}" for role, count in zip(roles, counts, strict=True))
    return f"{sum(counts)} replica{'s' * (sum(counts) != 1)}" + (f" ({each})" if len(roles) > 1 else "")


def queued(run: Run, phase: str) -> str:
    """Of one that waits, behind the word for that: `queued at position 3, starts at about 14:05 (in 12 min):
    needs 8 GPUs`."""
    line = in_line(run)
    return phase + (" at " if run.get("position") else ": ") + line if line else phase


def in_line(run: Run) -> str:
    """Where a run waits, when it is expected to start and why it waits, as far as that is known without being
    asked for: `position 3, starts at about 14:05 (in 12 min): needs 8 GPUs`. The most important comes first:
    a narrow terminal cuts the end."""
    from hopyard.cli.times import clock, localised, seconds_to, soon

    parts, at = [f"position {run['position']}"] if run.get("position") else [], run.get("expected_at")
    if parts and at:
        # the last plan was wrong, and the next is not made for that: `hop why` makes one
        late = seconds_to(at) < -_LATE_S
        parts.append(
            f"later than expected, see `hop why {run['name']}`"
            if late
            else f"starts at about {clock(at)} ({soon(at)})"
        )
    return ": ".join(filter(None, [", ".join(parts), localised(run.get("hold_detail") or "")]))


def duration_s(run: Run) -> float:
    """Seconds that its attempts ran, until now; 0 when it has not started.
    What it waited in between does not count."""
    attempt = run.get("attempt")
    # what was recorded offline has no part in what the scheduler counts
    if not attempt or run.get("offline"):
        return seconds_since(run.get("started_at"), run.get("ended_at"))
    runs_now = bool(attempt.get("started_at")) and not attempt.get("ended_at")
    return float(run["served_s"]) + (seconds_since(attempt["started_at"]) if runs_now else 0.0)


def interrupted(run: Run) -> str:
    """What ended the attempt after which a run waits again: `preempted at step 149, checkpoint saved`; ""
    where it waits for its first."""
    exit_ = (run.get("attempt") or {}).get("exit")
    if run["phase"] != "queued" or not exit_ or exit_["reason"] in (run.get("hold_detail") or ""):
        return ""  # or it is told already, as what it waits for
    return first_line(exit_["reason"])


def run_title(run: Run) -> str:
    """The run's name, behind the label that its user gave it."""
    label = run["spec"].get("label")
    return f"{label} ({run['name']})" if label else str(run["name"])


def first_line(reason: str) -> str:
    """A reason where there is one line for it; what a tool such as uv had to say more is left to `hop
    info`."""
    line, *more = reason.strip().splitlines() or [""]
    return line + (" …" if more else "")


def ending(run: Run) -> str:
    """One line of how a run ended: `failed after 3.1 s: exit code 1`."""
    took = f" after {span(duration_s(run))}" if run.get("started_at") else ""
    exit_ = run.get("exit")
    words = f"{run['phase']}{took}"
    if exit_ and run["phase"] != "succeeded":
        words += f": {exit_['reason']}"
    return words


def unstored(run: Run) -> str:
    """What could not be stored of it, in one line; "" where all was."""
    first, *more = map(str, run.get("unstored") or [""])
    return first + (f" (and {len(more)} more: `hop info {run['name']}`)" if more else "")


def exit_code(run: Run) -> int:
    """What `hop run` returns for an ended run: the script's own exit code."""
    if run["phase"] == "succeeded":
        return 0
    exit_ = run.get("exit")
    return int(exit_["code"]) or 1 if exit_ else 1


def begun_with(begin: Mapping[str, Any], metric: str) -> str:
    """What a forked study began with: `the best model of alice/digits/12: trial 3 after epoch 4, val_acc
    0.97`."""
    return (
        f"the best model of {begin['study']}: trial {begin['trial']} after epoch {begin['epoch']}, "
        f"{metric} {number(begin['value'])}"
    )


def values_line(values: Mapping[str, float | None], *, limit: int = 6) -> str:
    """`val_acc 0.9312  loss 0.21`."""
    shown = [f"{name} {number(value)}" for name, value in list(values.items())[:limit]]
    rest = len(values) - limit
    return "  ".join(shown) + (f"  (+{rest} more)" if rest > 0 else "")
