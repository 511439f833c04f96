"""`hop info`: all details of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import json_option, last_run_argument
from hopyard.cli.run_text import (
    address,
    command_text_words,
    duration_s,
    fork_source_text,
    queued_text,
    replica_count_text,
    sync_text,
)
from hopyard.cli.status_line import progress_text
from hopyard.cli.terminal import console
from hopyard.cli.terminal.console import format_bytes, format_duration, format_number, paint, paint_phase
from hopyard.client.run_commands import list_run_commands
from hopyard.client.run_files import describe_stored_files
from hopyard.client.run_lookup import get_run
from hopyard.client.system_usage import describe_system_usage
from hopyard.config.key_values import format_value
from hopyard.config.resource_requests import (
    GpuRequest,
    TopologyRequest,
    format_gpus,
    format_replicas,
    format_topology,
)
from hopyard.config.units import format_cpus, format_memory, format_time
from hopyard.domain.checkpoint_retention import RetentionRule, format_retention
from hopyard.domain.notification import shown_target
from hopyard.domain.text import escape, first_line
from hopyard.errors import NotFound

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_LABEL_WIDTH = 12
_MAX_EVENTS = 8  # the newest are shown
_MAX_LATEST = 100  # metrics
_MAX_ALERT_WIDTH = 120  # columns; `--json` has the whole text
_EVENT_WORDS = {
    "promised": "promised",
    "breached": "promise broken",
    "preempted": "preemption requested",
    "damaged": "damaged",
    "unread-params": "not read",
    "media": "not read",
}


@click.command("info")
@last_run_argument()
@json_option
def info(ref: str, as_json: bool) -> None:
    """Show all details of RUN, by default the newest run."""
    from hopyard.api_client.local_server import connect

    client = connect()
    run = client.get_run(get_run(client, ref)["id"])
    checkpoints = list(client.iterate_run_checkpoints(run["id"]))
    if as_json:
        console.print_json({**run, "checkpoints": checkpoints})
        return
    for label, text in info_lines(client, run, checkpoints):
        first, *more = text.replace("\r\n", "\n").split("\n")
        console.print_line(f"{paint(label.ljust(_LABEL_WIDTH), 'dim')}{first}".rstrip())
        for line in more:
            console.print_line(" " * _LABEL_WIDTH + line)


def info_lines(
    client: Client, run: api.RunOut, checkpoints: list[api.CheckpointOut]
) -> Iterator[tuple[str, str]]:
    """Returns label and text of each line; a label is empty on a continuation line."""
    from hopyard.client.ignore_check import failed_run_hint

    spec = run["spec"]
    yield "run", paint(run["name"], "bold") + (f"  {spec['label']}" if spec.get("label") else "")
    yield "id", run["id"]
    yield "address", address(client, run)
    yield "phase", _phase_text(run)
    if hint := failed_run_hint(run):
        yield "hint", hint.removeprefix("hint: ")
    yield "submitted", _time_text(run["submitted_at"])
    if started_at := run.get("started_at"):
        yield "started", _time_text(started_at)
        yield "took", format_duration(duration_s(run))
    for role in spec["roles"]:
        if len(spec["roles"]) > 1:
            yield "role", role["name"]
        yield from _role_text(role, spec)
    if stopped_by := run.get("stopped_by"):
        yield "stopped by", stopped_by
    yield from _code_text(spec)
    yield from _labelled_lines(
        "dataset", [f"{d['name']}:{d['version'] or 'newest'}" for d in spec.get("datasets") or ()]
    )
    yield from _labelled_lines(
        "params",
        [f"{key} = {format_value(value)}" for key, value in sorted((run.get("params") or {}).items())],
    )
    if unread := run.get("unread_params"):
        yield "not read", f"{', '.join(unread)}: the recorded value had no effect"
    yield from _labelled_lines(
        "env", [f"{key}={value}" for key, value in sorted((spec.get("env") or {}).items())]
    )
    yield from _labelled_lines("secrets", [", ".join(spec["secrets"])] if spec.get("secrets") else [])
    if run.get("machine_env"):
        yield "machine env", ", ".join(run["machine_env"])
    yield from _labelled_lines(
        "tags", [f"{key}={value}" for key, value in sorted((spec.get("tags") or {}).items())]
    )
    if run.get("note"):
        yield "note", run["note"]
    yield "queue", _queue_settings(spec)
    if topology := spec.get("topology"):
        yield "topology", _topology_text(topology)
    if time_limit_s := spec.get("time_limit_s"):
        yield "time limit", format_time(time_limit_s)
    if (idle_s := spec.get("idle_s")) is not None:
        yield "idle", f"ends after {format_time(idle_s)} without use and connections"
    if max_output_bytes := spec.get("max_output_bytes"):
        yield "max output", f"{format_memory(max_output_bytes)} of each of stdout and stderr"
    if max_metrics_bytes := spec.get("max_metrics_bytes"):
        yield (
            "max metrics",
            (
                f"{format_memory(max_metrics_bytes)} of each of metrics, TensorBoard scalars, "
                "events and samples"
            ),
        )
    yield from _labelled_lines("from output", list(spec.get("metric_lines", ())))
    if ports := spec.get("ports"):
        yield "ports", ", ".join(str(n) if name == str(n) else f"{name}={n}" for name, n in ports.items())
    yield from _labelled_lines("notifies", [_target_text(target) for target in spec.get("on_end", ())])
    yield from _labelled_lines("resume with", list(spec.get("resume_arguments", ())))
    if (kept := spec.get("retention")) is not None:
        yield "keeps", format_retention(RetentionRule(**kept))
    yield from _labelled_lines("outputs", [", ".join(spec["outputs"])] if spec.get("outputs") else [])
    if spec.get("forked_from"):
        yield (
            "forked from",
            (run.get("forked_from_name", spec["forked_from"]) or f"{spec['forked_from']} (removed)")
            + _fork_source(spec),
        )
    if evaluation := spec.get("evaluation"):
        yield "evaluates", _evaluated_name(client, evaluation["run"])
    yield from _labelled_lines("attempts", [_attempt_lines(run, a) for a in run.get("attempts") or ()])
    yield from _labelled_lines("events", _event_lines(run.get("events") or []))
    if run["ended_at"] is None:
        yield from _labelled_lines("commands", _pending_command_lines(client, run))
    yield from _labelled_lines("checkpoints", _checkpoint_lines(checkpoints))
    yield from _labelled_lines("usage", describe_system_usage(client, run))
    if stored_files := describe_stored_files(client, run):
        yield "files", f"{stored_files}; `hop files {run['name']}` lists them"
    if run.get("run_folder"):
        yield "run folder", f"{format_bytes(run['run_folder_bytes'])}, for the next attempt"
    yield from _labelled_lines("not stored", run.get("unstored") or [])
    yield from _labelled_lines("elsewhere", run.get("elsewhere") or [])
    if progress := run.get("progress"):
        yield "progress", progress_text(progress["done"], progress["total"], progress["unit"])
    yield from _labelled_lines("latest", _latest_lines(run.get("latest") or {}))
    yield from _labelled_lines(
        "summary",
        [f"{escape(name)} {format_number(value)}" for name, value in (run.get("summary") or {}).items()],
    )


def _latest_lines(latest: Mapping[str, Sequence[Any]]) -> list[str]:
    """Returns a line for each metric. A name with a line break forges no line."""
    lines = [
        f"{escape(name)} {format_number(value)}  (step {step})"
        for name, (step, value) in sorted(latest.items())[:_MAX_LATEST]
    ]
    rest = len(latest) - _MAX_LATEST
    return [*lines, f"… and {rest} more: `hop info RUN --json`"] if rest > 0 else lines


def _fork_source(spec: api.RunSpec) -> str:
    """Returns the source of a fork; "" for other runs."""
    resume, study = spec.get("resume"), spec.get("study")
    if study and (beginning := study.get("beginning")):
        return f": {fork_source_text(beginning, study)}"
    return f", from its checkpoint at step {resume['step']}" if resume else ""


def _phase_text(run: api.RunOut) -> str:
    text = paint_phase(run["phase"])
    if run["phase"] == "queued":
        return queued_text(run, text)
    if synced := sync_text(run):
        return f"{text}: {synced}"
    exit_ = run.get("exit")
    return (
        text
        + (f": {exit_['reason']}" if exit_ and run["phase"] != "succeeded" else "")
        + ("  (recorded offline)" if run.get("offline") else "")
    )


def _queue_settings(spec: api.RunSpec) -> str:
    priority = "the queue's priority" if spec["priority"] is None else f"priority {spec['priority']}"
    return f"{spec['queue'] or 'the default'}, {priority}" + (
        "" if spec["preemptible"] else ", not preemptible"
    )


def _time_text(text: str) -> str:
    from datetime import datetime

    return (
        datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        + f"  ({console.format_age(console.seconds_since(text))} ago)"
    )


def _role_text(role: api.RoleSpec, spec: api.RunSpec) -> Iterator[tuple[str, str]]:
    import shlex

    resources = role["resources"]
    parts = [f"{format_cpus(resources['cpu_milli'])} CPU"]
    if resources.get("memory_bytes"):
        parts.append(f"{format_memory(resources['memory_bytes'])} memory")
    gpus = GpuRequest(resources["gpus"], resources["gpu_milli"], tuple(resources["gpu_models"]))
    if gpus.count or gpus.milli:
        parts.append(f"{format_gpus(gpus)} GPU")
    if resources["gpu_memory_bytes"]:
        parts.append(
            f"{format_memory(resources['gpu_memory_bytes'])} of one {' or '.join(gpus.models)} GPU".replace(
                "  ", " "
            )
        )
    parts += [f"{count} {extra}" for extra, count in resources["extras"]]
    times = f"{format_replicas(role['min_replicas'], role['replicas'])} x " if role["replicas"] > 1 else ""
    yield "command", shlex.join(command_text_words(role, spec))
    yield "resources", times + ", ".join(parts)
    where = [
        *([f"pool {' or '.join(role['where']['pools'])}"] if role["where"]["pools"] else []),
        *(f"{k}={v}" for k, v in role["where"]["labels"]),
    ]
    if topology := role.get("topology"):
        where.append(_topology_text(topology))
    if where:
        yield "where", ", ".join(where)


def _topology_text(topology: api.Topology) -> str:
    return format_topology(TopologyRequest(topology["rule"], topology["level"], topology["slice"]))


def _code_text(spec: api.RunSpec) -> Iterator[tuple[str, str]]:
    if code := spec.get("code"):
        yield "code", code[:12]
    git = spec.get("git")
    if git:
        branch = f" ({git['branch']})" if git.get("branch") else ""
        yield (
            "git",
            git["commit"][:12]
            + branch
            + (" with changes" if git.get("dirty") else "")
            + (f"  {git['remote']}" if git.get("remote") else ""),
        )
    environment: api.Environment = spec.get("environment") or {}
    if requirements := environment.get("requirements"):
        lock = environment.get("lock")
        yield (
            "environment",
            f"built from requirements {requirements[:12]}" + (f", lock {lock[:12]}" if lock else ""),
        )
    elif environment.get("interpreter"):
        yield "environment", environment["interpreter"]
    packages = environment.get("packages") or {}
    if packages:
        yield "packages", f"{len(packages)}; `--json` lists them"
    for path, target in (environment.get("links") or {}).items():
        yield "link", f"{path} -> {target}"
    for name, source in (environment.get("editable") or {}).items():
        place = source if source.startswith("/") else f"the packed code, {source}"
        yield "editable", f"{name} from {place}"


def _attempt_lines(run: api.RunOut, attempt: api.Attempt) -> str:
    began, ended = attempt.get("started_at"), attempt.get("ended_at")
    took = f" after {format_duration(console.seconds_since(began, ended))}" if began and ended else ""
    gpus = [index for indices in attempt.get("gpus") or () for index in indices]
    where = ", ".join(dict.fromkeys(attempt.get("nodes") or ())) + (
        f", GPUs {', '.join(map(str, gpus))}" if gpus else ""
    )
    size = replica_count_text(run, attempt)
    many = f" as {size}" if size else ""
    step = attempt.get("resumed_from_step")
    origin = f", from step {step}" if step is not None else ""
    exit_ = attempt.get("exit")
    reason = f": {first_line(exit_['reason'])}" if exit_ and attempt["phase"] != "succeeded" else ""
    return f"{attempt['number']}  {attempt['phase']}{took}{many} on {where}{origin}{reason}"


def _event_lines(events: list[api.RunEvent]) -> list[str]:
    from hopyard.cli.terminal.times import format_clock

    earlier = len(events) - _MAX_EVENTS
    more = [f"{earlier} earlier; `--json` lists them"] if earlier > 0 else []
    return more + [
        (
            f"{format_clock(event['at'])}  {_EVENT_WORDS.get(event['kind'], event['kind'])}: "
            f"{_event_text(event)}"
        )
        for event in events[-_MAX_EVENTS:]
    ]


def _event_text(event: api.RunEvent) -> str:
    """Returns the detail of an event; that of an alert, which a script may make long, in one line."""
    from hopyard.cli.terminal.times import localise_times

    if event["kind"] == "alert":
        return console.truncate(" ".join(event["detail"].split()), _MAX_ALERT_WIDTH)
    return localise_times(event["detail"])


def _pending_command_lines(client: Client, run: api.RunOut) -> list[str]:
    """Returns a line for each command that waits for a safe point of the script."""
    from hopyard.cli.terminal.times import format_clock

    return [
        f"{format_clock(command['created_at'])}  {command['kind']} by {command['user']} "
        + "".join(f"{name}={format_value(value)} " for name, value in command["arguments"].items())
        + "waits for a safe point"
        for command in list_run_commands(client, run)
        if command["state"] == "pending"
    ]


def _checkpoint_lines(checkpoints: list[api.CheckpointOut]) -> list[str]:
    return [
        f"step {c['step']}  {format_bytes(c['size_bytes'])}"
        + ("  best" if c.get("best") else "")
        + ("  kept" if c.get("kept") else "")
        + ("  damaged: it cannot be read" if c.get("damaged") else "")
        + (
            "  " + "  ".join(f"{escape(k)} {format_number(v)}" for k, v in c["metrics"].items())
            if c.get("metrics")
            else ""
        )
        for c in checkpoints
    ]


def _evaluated_name(client: Client, run: str) -> str:
    try:
        return client.get_run(run)["name"]
    except NotFound:
        return f"{run} (removed)"


def _target_text(target: api.NotifyTarget) -> str:
    events = ", ".join(target.get("when") or ())
    return f"{escape(shown_target(target['to']))}{f' ({events})' if events else ''}"


def _labelled_lines(label: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for i, line in enumerate(lines):
        yield label if i == 0 else "", line
