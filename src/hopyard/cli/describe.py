"""`hop info`: everything about one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from hopyard.cli import console
from hopyard.cli.address import (
    Run,
    address,
    begun_with,
    being_synced,
    duration_s,
    first_line,
    get_run,
    queued,
    size_of,
)
from hopyard.cli.console import bytes_text, number, paint, paint_phase, span
from hopyard.cli.options import json_option, last_run_argument
from hopyard.cli.statusline import progress_parts
from hopyard.config.asks import Gpus, TopologyAsk, format_gpus, format_replicas, format_topology
from hopyard.config.params import format_value
from hopyard.config.units import format_cpus, format_memory, format_time
from hopyard.sdk.client import Client

_LABEL_WIDTH = 12
_EVENTS = 8  # the newest are told
_EVENT_WORDS = {
    "promised": "promised",
    "breached": "promise broken",
    "preempted": "asked to make room",
    "damaged": "damaged",
}


@click.command("info")
@last_run_argument()
@json_option
def describe(ref: str, as_json: bool) -> None:
    """Tell everything about RUN (the newest run where it is left out)."""
    from hopyard.sdk.connect import connect

    client = connect()
    run: Run = client.get(f"/runs/{get_run(client, ref)['id']}")
    run["checkpoints"] = list(client.pages(f"/runs/{run['id']}/checkpoints", "checkpoints"))
    if as_json:
        console.out_json(run)
        return
    for label, text in lines_of(client, run):
        first, *more = text.splitlines() or [""]
        console.out(f"{paint(label.ljust(_LABEL_WIDTH), 'dim')}{first}".rstrip())
        for line in more:
            console.out(" " * _LABEL_WIDTH + line)


def lines_of(client: Client, run: Run) -> Iterator[tuple[str, str]]:
    """Label and text of every line; a label is empty where a line goes on with the one before."""
    spec = run["spec"]
    yield "run", paint(run["name"], "bold") + (f"  {spec['label']}" if spec.get("label") else "")
    yield "id", run["id"]
    yield "address", address(client, run)
    yield "phase", _phase(run)
    yield "submitted", _moment(run["submitted_at"])
    if run.get("started_at"):
        yield "started", _moment(run["started_at"])
        yield "took", span(duration_s(run))
    for role in spec["roles"]:
        if len(spec["roles"]) > 1:
            yield "role", role["name"]
        yield from _role(role)
    if run.get("stopped_by"):
        yield "stopped by", run["stopped_by"]
    yield from _code(spec)
    yield from _listed(
        "dataset", [f"{d['name']}:{d['version'] or 'newest'}" for d in spec.get("datasets") or ()]
    )
    yield from _listed(
        "params",
        [f"{key} = {format_value(value)}" for key, value in sorted((run.get("params") or {}).items())],
    )
    yield from _listed("env", [f"{key}={value}" for key, value in sorted((spec.get("env") or {}).items())])
    yield from _listed("secrets", [", ".join(spec["secrets"])] if spec.get("secrets") else [])
    if run.get("machine_env"):
        yield "machine env", ", ".join(run["machine_env"])
    yield from _listed("tags", [f"{key}={value}" for key, value in sorted((spec.get("tags") or {}).items())])
    if run.get("note"):
        yield "note", run["note"]
    yield "queue", _standing(spec)
    if spec.get("topology"):
        yield "topology", _topology(spec["topology"])
    if spec.get("time_limit_s"):
        yield "time limit", format_time(spec["time_limit_s"])
    if spec.get("max_output_bytes"):
        yield "max output", f"{format_memory(spec['max_output_bytes'])} of each of stdout and stderr"
    if spec.get("max_metrics_bytes"):
        yield (
            "max metrics",
            (
                f"{format_memory(spec['max_metrics_bytes'])} of each of metrics, TensorBoard scalars, "
                "events and samples"
            ),
        )
    if spec.get("forked_from"):
        yield (
            "forked from",
            (run.get("forked_from_name", spec["forked_from"]) or f"{spec['forked_from']} (removed)")
            + _from_where(spec),
        )
    yield from _listed("attempts", [_attempt(run, a) for a in run.get("attempts") or ()])
    yield from _listed("events", _events(run.get("events") or []))
    yield from _listed("checkpoints", _checkpoints(run.get("checkpoints") or []))
    yield from _listed("not stored", run.get("unstored") or [])
    yield from _listed("elsewhere", run.get("elsewhere") or [])
    progress = progress_parts(run.get("progress") or {})
    if progress:
        yield "progress", "  ".join(progress)
    yield from _listed(
        "latest",
        [
            f"{name} {number(pair[1])}  (step {pair[0]})"
            for name, pair in sorted((run.get("latest") or {}).items())
        ],
    )
    yield from _listed(
        "summary", [f"{name} {number(value)}" for name, value in (run.get("summary") or {}).items()]
    )


def _from_where(spec: dict[str, Any]) -> str:
    """Of a fork, with what it began."""
    resume, study = spec.get("resume"), spec.get("study") or {}
    if study.get("beginning"):
        return f": {begun_with(study['beginning'], study['metric'])}"
    return f", from its checkpoint at step {resume['step']}" if resume else ""


def _phase(run: Run) -> str:
    text = paint_phase(run["phase"])
    if run["phase"] == "queued":
        return queued(run, text)
    if synced := being_synced(run):
        return f"{text}: {synced}"
    exit_ = run.get("exit")
    return (
        text
        + (f": {exit_['reason']}" if exit_ and run["phase"] != "succeeded" else "")
        + ("  (recorded offline)" if run.get("offline") else "")
    )


def _standing(spec: dict[str, Any]) -> str:
    priority = "the queue's priority" if spec["priority"] is None else f"priority {spec['priority']}"
    return f"{spec['queue'] or 'the default'}, {priority}" + (
        "" if spec["preemptible"] else ", never asked to make room"
    )


def _moment(text: str) -> str:
    from datetime import datetime

    return (
        datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        + f"  ({console.age(console.seconds_since(text))} ago)"
    )


def _role(role: dict[str, Any]) -> Iterator[tuple[str, str]]:
    import shlex

    asked = role["resources"]
    parts = [f"{format_cpus(asked['cpu_milli'])} CPU"]
    if asked.get("memory_bytes"):
        parts.append(f"{format_memory(asked['memory_bytes'])} memory")
    gpus = Gpus(asked["gpus"], asked["gpu_milli"], tuple(asked["gpu_models"]))
    if gpus.count or gpus.milli:
        parts.append(f"{format_gpus(gpus)} GPU")
    if asked["gpu_memory_bytes"]:
        parts.append(
            f"{format_memory(asked['gpu_memory_bytes'])} of one {' or '.join(gpus.models)} GPU".replace(
                "  ", " "
            )
        )
    parts += [f"{count} {extra}" for extra, count in asked["extras"]]
    times = f"{format_replicas(role['min_replicas'], role['replicas'])} x " if role["replicas"] > 1 else ""
    yield "command", shlex.join(role["command"])
    yield "resources", times + ", ".join(parts)
    where = [
        *([f"pool {' or '.join(role['where']['pools'])}"] if role["where"]["pools"] else []),
        *(f"{k}={v}" for k, v in role["where"]["labels"]),
    ]
    if role.get("topology"):
        where.append(_topology(role["topology"]))
    if where:
        yield "where", ", ".join(where)


def _topology(said: dict[str, Any]) -> str:
    return format_topology(TopologyAsk(said["rule"], said["level"], said["slice"]))


def _code(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if spec.get("code"):
        yield "code", spec["code"][:12]
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
    environment = spec.get("environment") or {}
    if environment.get("requirements"):
        lock = environment.get("lock")
        yield (
            "environment",
            f"built from requirements {environment['requirements'][:12]}"
            + (f", lock {lock[:12]}" if lock else ""),
        )
    elif environment.get("interpreter"):
        yield "environment", environment["interpreter"]
    packages = environment.get("packages") or {}
    if packages:
        yield "packages", f"{len(packages)}; `--json` lists them"


def _attempt(run: Run, attempt: dict[str, Any]) -> str:
    began, ended = attempt.get("started_at"), attempt.get("ended_at")
    took = f" after {span(console.seconds_since(began, ended))}" if began and ended else ""
    gpus = [index for one in attempt.get("gpus") or () for index in one]
    where = ", ".join(dict.fromkeys(attempt.get("nodes") or ())) + (
        f", GPUs {', '.join(map(str, gpus))}" if gpus else ""
    )
    size = size_of(run, attempt)
    many = f" as {size}" if size else ""
    step = attempt.get("resumed_from_step")
    origin = f", from step {step}" if step is not None else ""
    exit_ = attempt.get("exit")
    reason = f": {first_line(exit_['reason'])}" if exit_ and attempt["phase"] != "succeeded" else ""
    return f"{attempt['number']}  {attempt['phase']}{took}{many} on {where}{origin}{reason}"


def _events(found: list[dict[str, Any]]) -> list[str]:
    from hopyard.cli.times import clock, localised

    earlier = len(found) - _EVENTS
    more = [f"{earlier} earlier; `--json` lists them"] if earlier > 0 else []
    return more + [
        f"{clock(one['at'])}  {_EVENT_WORDS.get(one['kind'], one['kind'])}: {localised(one['detail'])}"
        for one in found[-_EVENTS:]
    ]


def _checkpoints(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"step {c['step']}  {bytes_text(c['size_bytes'])}"
        + ("  kept" if c.get("kept") else "")
        + ("  damaged: it cannot be read" if c.get("damaged") else "")
        + ("  " + "  ".join(f"{k} {number(v)}" for k, v in c["metrics"].items()) if c.get("metrics") else "")
        for c in found
    ]


def _listed(label: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for i, line in enumerate(lines):
        yield label if i == 0 else "", line
