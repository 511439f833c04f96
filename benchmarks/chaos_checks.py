"""What must hold after each round of `benchmarks.chaos`, checked from outside: by the API, the processes of
the machine, the blobs, and the ledgers that the scripts have written themselves."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.chaos_faults import Fault
from benchmarks.local_server import LocalServer
from hopyard.client.download import download_tree

Result = TypeVar("Result")
# parts of a node: an attempt that is launched meanwhile may have to be launched again
_OF_NODE = ("spawner", "server", "service", "conmon")
_PREFLIGHT = re.compile("preflight check `pairs` failed: .* connection")
_KILLED_SCRIPT = (137, "killed by signal 9 (SIGKILL)")
_KILLED_WORKER = (1, "SIGKILL")  # torchrun reports it
Retry = Callable[[Callable[[], Result]], Result]


@dataclass(frozen=True, slots=True)
class Round:
    """One round after its end. run: of the API. commands: numbers of the commands that were accepted."""

    fault: Fault
    run: Mapping[str, Any]
    attempts: Sequence[Mapping[str, Any]]
    commands: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[Mapping[str, Any]]
    series: Mapping[int, Mapping[str, Any]]  # by rank: {"total": …, "lr": …}
    ledger: Path
    steps: int
    replicas: int
    is_hit: bool  # whether the fault found its process
    accepted: Sequence[int] = field(default=())
    evaluation: tuple[int, str, str] | None = None  # exit code and output of `hop repl`

    @property
    def outcome(self) -> str:
        exit = self.run.get("exit") or {}
        reason = f" ({exit['reason']})" if exit and self.run["phase"] != "succeeded" else ""
        return f"{self.run['phase']} in {len(self.attempts)} attempt{'s' * (len(self.attempts) != 1)}{reason}"


def read_ledger(round: Round) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Returns the lines by attempt and rank. The last line of a killed script may be cut. A process that was
    started again repeats steps: their last lines count."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for path in sorted(round.ledger.glob("*.jsonl")):
        attempt, rank, _ = path.name.split(".")
        lines = dict[int, dict[str, Any]]()
        for text in path.read_text().splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                lines[line["step"]] = line
        found[int(attempt), int(rank)] = [lines[step] for step in sorted(lines)]
    return found


def end_violations(round: Round) -> list[str]:
    """Checks the end state and its reason."""
    fault, phase, found = round.fault, round.run["phase"], list[str]()
    exit = round.run.get("exit") or {}
    reason = exit.get("reason", "")
    killed = fault.part if round.is_hit and fault.kind == "kill" else ""
    script_killed = killed in ("script", "worker", "container")
    leaves = fault.phase in ("preemption", "release")
    # a fault of a replica or its script can come before the checkpoint
    saves = not fault.hits_script or (fault.kind == "freeze" and fault.lasting_s < 5)
    replica_killed = killed == "replica"
    if phase == "failed" and script_killed and fault.mode != "restarts":
        code, text = _KILLED_WORKER if killed == "worker" else _KILLED_SCRIPT
        if exit.get("code") != code or text not in reason:
            found.append(f"the script was killed, and the run ended with {exit}")
    elif phase != "succeeded":
        found.append(f"the run {phase} with {exit}")
    elif script_killed and not leaves and fault.mode != "restarts":
        found.append("a process of the script was killed, and the run succeeded")
    restarts = [event for event in round.events if event["kind"] == "restarted"]
    if len(restarts) > int(script_killed and fault.mode == "restarts"):
        found.append(f"processes were started again: {[event['detail'] for event in restarts]}")
    if script_killed and fault.mode == "restarts" and not leaves and len(restarts) != 1:
        found.append("the process of a script was killed, and no event has its restart")
    if phase == "succeeded" and round.run["summary"] != {"total": sum(range(round.steps))}:
        found.append(f"the summary is {round.run['summary']}")
    *before, last = round.attempts
    if last["phase"] != phase:
        found.append(f"the run {phase}, its last attempt {last['phase']}")
    numbers = [attempt["number"] for attempt in round.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"the attempts are {numbers}")
    for attempt in before:
        attempt_reason = (attempt["exit"] or {}).get("reason", "")
        kind = (attempt["exit"] or {}).get("kind")
        preempted = kind == "preempted" and leaves
        # a frozen replica that obeys no order in time is killed as a dead one
        lost = kind == "lost" and round.is_hit and (replica_killed or fault.part == "replica")
        # a spawner that ends during a launch: the fault is the node's, and the run is retried
        # it ends, too, by a connection that breaks during the checks before the script
        refused = (
            kind == "node-fault"
            and round.is_hit
            and (
                fault.part in _OF_NODE
                or (fault.phase == "start" and _PREFLIGHT.search(attempt_reason) is not None)
            )
        )
        if not (preempted or lost or refused):
            found.append(f"attempt {attempt['number']} ended with {attempt['exit']}")
        if (
            preempted
            and saves
            and not re.fullmatch(r"preempted at step \d+, checkpoint saved", attempt_reason)
        ):
            found.append(f"attempt {attempt['number']} was preempted with the reason `{attempt_reason}`")
        if lost and "its replica died on node" not in attempt_reason:
            found.append(f"attempt {attempt['number']} was lost with the reason `{attempt_reason}`")
    if replica_killed and not leaves and not before:
        found.append("a replica was killed, and its attempt succeeded")
    most = 1 + leaves + (replica_killed or fault.lasting_s >= 5 or fault.part in _OF_NODE)
    most += any(
        _PREFLIGHT.search((attempt["exit"] or {}).get("reason", "")) is not None for attempt in before
    )
    if len(round.attempts) > most:
        found.append(f"{len(round.attempts)} attempts, at most {most} are expected")
    resumed = [attempt["resumed_from_step"] or 0 for attempt in round.attempts]
    if resumed != sorted(resumed):
        found.append(f"the attempts began at the steps {resumed}")
    return found


def metric_violations(round: Round) -> list[str]:
    """Checks that no point is doubled, missing or wrong: each point that a script logged in the last attempt,
    and each one that it logged before the checkpoint with which that attempt began.

    The rank that saves the checkpoint may be one step ahead of a rank that is killed. A kill may also come
    between a point and its line in the ledger.
    """
    found, ledger = list[str](), read_ledger(round)
    last = round.attempts[-1]["number"]
    resumed = round.attempts[-1]["resumed_from_step"] or 0
    for rank in range(round.replicas):
        series = round.series[rank]
        steps = list(series["total"]["steps"])
        logged = [line["step"] for line in ledger.get((last, rank), [])]
        earlier = (lines for (attempt, of), lines in ledger.items() if of == rank and attempt < last)
        kept = {line["step"] for lines in earlier for line in lines if line["step"] < resumed}
        durable = {*kept, *logged}
        if steps != sorted(set(steps)):
            found.append(f"rank {rank} has the steps {steps}")
        if missing := sorted(durable - set(steps)):
            found.append(f"rank {rank} lacks the points {missing}, which its script logged")
        unrecorded = {max(kept, default=-1) + 1} & set(range(resumed))
        if round.run["phase"] != "succeeded":
            unrecorded.add(logged[-1] + 1 if logged else resumed)
        if round.fault.mode == "restarts" and logged:
            unrecorded |= set(range(resumed, logged[-1]))
        if added := sorted(set(steps) - durable - unrecorded):
            found.append(f"rank {rank} has the points {added}, which its script did not log")
        if list(series["total"]["values"]) != [sum(range(step + 1)) for step in steps]:
            found.append(f"rank {rank} has the values {series['total']['values']}")
        if list(series["lr"]["steps"]) != steps:
            found.append(f"rank {rank} has the steps {series['lr']['steps']} of lr, {steps} of total")
    return found


def command_violations(round: Round) -> list[str]:
    """Checks that each command was applied at most once, and by all ranks at the same step. A process that
    was started again repeats steps with the newest rate, and follows the others."""
    fault, found, ledger = round.fault, list[str](), read_ledger(round)
    follower = fault.rank if (fault.mode, fault.part) == ("restarts", "script") else -1
    for number in {attempt for attempt, _ in ledger}:
        rates: dict[int, set[float]] = {}
        for rank in range(round.replicas):
            for line in ledger.get((number, rank), [])[-1 if rank == follower else 0 :]:
                rates.setdefault(line["step"], set()).add(line["lr"])
        mixed = {step: sorted(values) for step, values in rates.items() if len(values) > 1}
        if mixed:
            found.append(f"attempt {number} trained with different rates: {mixed}")
        values = [min(rates[step]) for step in sorted(rates)]
        changes = sum(a != b for a, b in pairwise(values))
        sets = sum(command["kind"] == "set" for command in round.commands)
        if changes > sets:
            found.append(f"attempt {number} changed its rate {changes} times, with {sets} commands")
    numbers = [command["number"] for command in round.commands]
    if len(set(numbers)) != len(numbers) or not set(round.accepted) <= set(numbers):
        found.append(f"the commands {round.accepted} were accepted, and the run has {numbers}")
    for command in round.commands:
        if command["state"] == "pending":
            found.append(f"command {command['number']} ({command['kind']}) is still pending")
        if command["state"] == "refused" and round.run["phase"] == "succeeded":
            found.append(f"command {command['number']} was refused: {command['answer']}")
    applied = sum(command["state"] == "applied" and command["kind"] == "set" for command in round.commands)
    changed = sum(event["kind"] == "control" and "lr" in event["detail"] for event in round.events)
    if changed != applied:
        found.append(f"{applied} commands changed lr, and there are {changed} events of it")
    return found


def evaluation_violations(round: Round) -> list[str]:
    """Checks the evaluation that was pending: it has succeeded, or failed with an error in words."""
    if round.evaluation is None:
        return []
    fault, (code, output, error) = round.fault, round.evaluation
    if code == 0:
        try:
            step, total = map(int, output.strip().strip("()").split(","))
        except ValueError:
            return [f"the evaluation has the result {output!r}"]
        is_total = total in (sum(range(step)), sum(range(step + 1)))
        return [] if is_total else [f"the evaluation has the total {total} at step {step}"]
    unharmed = not round.is_hit or (fault.kind == "freeze" and fault.lasting_s < 5) or fault.part == "helper"
    if unharmed or "Traceback" in error or not re.search("^error: ", error, re.M):
        return [f"the evaluation has ended with {code}: {error.strip()}"]
    return []


def checkpoint_violations(server: LocalServer, round: Round, folder: Path) -> list[str]:
    """Reads all checkpoints, which verifies the digest of each part, and restores their state."""
    found, steps = list[str](), [checkpoint["step"] for checkpoint in round.checkpoints]
    if steps != sorted(set(steps)):
        found.append(f"the checkpoints have the steps {steps}")
    for checkpoint in round.checkpoints:
        step, dest = checkpoint["step"], folder / f"checkpoint-{checkpoint['step']}"
        if checkpoint["damaged"]:
            found.append(f"the checkpoint of step {step} is damaged")
            continue
        try:
            download_tree(server.client, checkpoint["manifest"], dest)
            if not (dest / "hopyard.json").exists():
                found.append(f"the checkpoint of step {step} has no index")
            # written by the script of this benchmark
            total = pickle.loads((dest / "total.pkl").read_bytes())
        except Exception as error:  # whatever makes it unusable
            found.append(f"the checkpoint of step {step} cannot be read: {error!r}")
            continue
        if total != sum(range(step)):
            found.append(f"the checkpoint of step {step} has the total {total}, not {sum(range(step))}")
    return found


def leftover_processes(server: LocalServer, mark: str) -> list[str]:
    """Returns the processes that no run should have left: those with the mark of the round in their
    environment, and all others of the home but its server and spawner."""
    kept, found = {int((server.home.read_server() or {}).get("pid", 0))}, list[str]()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("CHAOS_MARK") == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    for process in server.processes():
        with suppress(psutil.Error):
            if process.pid not in kept and process.ppid() not in kept:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return sorted(set(found))


def held_resources(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the nodes that count anything as used."""
    return [
        f"node {node['id']} has {used} in use"
        for node in nodes
        if (used := {k: v for k, v in node["used"].items() if (any(v) if isinstance(v, list) else v)})
    ]
