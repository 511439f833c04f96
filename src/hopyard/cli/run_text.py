"""Texts about runs: name, address, place in the queue, end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.api_client.http_client import API
from hopyard.cli.terminal.console import format_duration, format_number, seconds_since
from hopyard.domain.metric_values import MetricValue
from hopyard.domain.text import escape, first_line

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.domain.param_format import ParamFormat

_SLOW_DETECTION_S = 2.0  # a start takes a moment, so a run is late only after this time


def address(client: Client, run: api.RunOut) -> str:
    return f"{client.url}{API}/runs/by-name/{run['name']}"


def is_final(run: api.RunOut) -> bool:
    return run["phase"] in ("succeeded", "failed", "cancelled")


def sync_text(run: api.RunOut) -> str:
    """Returns `being synced, last part came 3 min ago` for an offline recording that is not complete; "" for
    other runs."""
    if not run.get("offline") or is_final(run):
        return ""
    from hopyard.cli.terminal.console import format_age, seconds_since

    came = run.get("synced_at")
    return (
        "being synced"
        + (f", last part came {format_age(seconds_since(came))} ago" if came else "")
        + "; `hop sync` sends the rest"
    )


def start_line(run: api.RunOut) -> str:
    """Returns the next step of a submitted run: `starts at once`, or its place in the queue and the
    reason."""
    if run["phase"] != "queued":
        size = replica_count_text(run, run.get("attempt"))
        return (
            "starts at once" + (f" as {size}" if size else "")
            if run["phase"] in ("starting", "running")
            else str(run["phase"])
        )
    return queued_text(run, "queued")


def replica_count_text(run: api.RunOut, attempt: Mapping[str, Any] | None) -> str:
    """Returns the number of replicas of an attempt of an elastic run: `4 replicas`, `4 replicas (chief 1,
    worker 3)`; "" for other runs."""
    roles, counts = run["spec"]["roles"], (attempt or {}).get("counts") or ()
    if not counts or not any(role["min_replicas"] for role in roles):
        return ""
    each = ", ".join(f"{role['name']} {count}" for role, count in zip(roles, counts, strict=True))
    return f"{sum(counts)} replica{'s' * (sum(counts) != 1)}" + (f" ({each})" if len(roles) > 1 else "")


def queued_text(run: api.RunOut, phase: str) -> str:
    """Returns the text for a waiting run: `queued at position 3, starts at about 14:05 (in 12 min): needs 8
    GPUs`. phase: the painted word for the phase."""
    line = queue_line(run)
    return phase + (" at " if run.get("position") else ": ") + line if line else phase


def queue_line(run: api.RunOut) -> str:
    """Returns place, expected start and reason of a waiting run, as far as the last plan has them: `position
    3, starts at about 14:05 (in 12 min): needs 8 GPUs`. The most important part comes first, since a narrow
    terminal cuts the end."""
    from hopyard.cli.terminal.times import format_clock, format_time_until, localise_times, seconds_until

    parts, at = [f"position {run['position']}"] if run.get("position") else [], run.get("expected_at")
    if parts and at:
        # the last plan was wrong; `hop why` makes a new one
        late = seconds_until(at) < -_SLOW_DETECTION_S
        parts.append(
            f"later than expected, see `hop why {run['name']}`"
            if late
            else f"starts at about {format_clock(at)} ({format_time_until(at)})"
        )
    return ": ".join(filter(None, [", ".join(parts), localise_times(run.get("hold_detail") or "")]))


def duration_s(run: api.RunOut) -> float:
    """Returns the seconds that its attempts ran, until now; 0 before the start. Time between attempts does
    not count."""
    attempt = run.get("attempt")
    # the scheduler does not count the time of an offline recording
    if not attempt or run.get("offline"):
        return seconds_since(run.get("started_at"), run.get("ended_at"))
    runs_now = bool(attempt.get("started_at")) and not attempt.get("ended_at")
    return float(run["served_s"]) + (seconds_since(attempt["started_at"]) if runs_now else 0.0)


def last_eviction_text(run: api.RunOut) -> str:
    """Returns why the last attempt of a waiting run ended: `preempted at step 149, checkpoint saved`; ""
    before the first attempt."""
    attempt = run.get("attempt")
    exit_ = attempt.get("exit") if attempt else None
    if run["phase"] != "queued" or not exit_ or exit_["reason"] in (run.get("hold_detail") or ""):
        return ""  # the reason why it waits already names it
    return first_line(exit_["reason"])


def run_title(run: api.RunOut) -> str:
    """Returns the label of the run with its name, or the name alone."""
    label = run["spec"].get("label")
    return f"{label} ({run['name']})" if label else str(run["name"])


def end_text(run: api.RunOut) -> str:
    """Returns one line about the end of a run: `failed after 3.1 s: exit code 1`."""
    took = f" after {format_duration(duration_s(run))}" if run.get("started_at") else ""
    exit_ = run.get("exit")
    words = f"{run['phase']}{took}"
    if exit_ and run["phase"] != "succeeded":
        words += f": {exit_['reason']}"
    return words


def command_text_words(role: api.RoleSpec, spec: api.RunSpec) -> list[str]:
    """Returns the command of a role as it runs, with the parameters of the run in it."""
    from hopyard.domain.param_format import fill_command

    return list(fill_command(role["command"], spec.get("params") or {}, param_form(spec)).words)


def param_form(spec: api.RunSpec) -> ParamFormat | None:
    """Returns how the script of the run takes its parameters."""
    import msgspec

    from hopyard.domain.param_format import ParamFormat

    stored = spec.get("param_format")
    try:
        return None if stored is None else msgspec.convert(stored, ParamFormat)
    except msgspec.ValidationError:  # of another version: the command is shown as it is stored
        return None


def unstored_text(run: api.RunOut) -> str:
    """Returns a line about data that could not be stored; "" if all was stored."""
    first, *more = map(str, run.get("unstored") or [""])
    return first + (f" (and {len(more)} more: `hop info {run['name']}`)" if more else "")


def exit_reason(run: api.RunOut) -> str:
    """Returns why an ended run ended; "" for a live one."""
    exit_ = run.get("exit")
    return exit_["reason"] if exit_ else ""


def exit_code(run: api.RunOut) -> int:
    """Returns the exit code of `hop run` for an ended run: the script's own exit code."""
    if run["phase"] == "succeeded":
        return 0
    exit_ = run.get("exit")
    return int(exit_["code"]) or 1 if exit_ else 1


def fork_source_text(source: Mapping[str, Any], study: Mapping[str, Any]) -> str:
    """Returns the initial model of a forked study: `the best model of alice/digits/12: trial 3 after epoch 4,
    val_acc 0.97`."""
    unit = "step" if study.get("budget_unit") == "steps" else "epoch"
    return (
        f"the best model of {source['study']}: trial {source['trial']} after {unit} {source['epoch']}, "
        f"{study['metric']} {format_number(source['value'])}"
    )


def metrics_line(metrics: Mapping[str, MetricValue], *, limit: int = 6) -> str:
    """`val_acc 0.9312  loss 0.21`."""
    shown = [f"{escape(name)} {format_number(value)}" for name, value in list(metrics.items())[:limit]]
    rest = len(metrics) - limit
    return "  ".join(shown) + (f"  (+{rest} more)" if rest > 0 else "")
