"""Kills, freezes and disconnects each part of Hopyard at random during a run of four replicas.

    python -m benchmarks.chaos [--seed N] [--rounds 100] [--only K] [--json] [--keep]

Each round is one run on two declared nodes and one fault: SIGKILL, SIGSTOP for a while, or the shutdown of
all connections of a replica, of the process of a rank, of the process beside a replica that ends orphans, of
the server, or of the spawner. In other rounds the replicas run in containers, under torchrun, or with a
restart policy; then faults also hit Podman's service, a container, its monitor, or a process of torchrun. It
comes while the run starts, trains, saves a checkpoint, is paused, is preempted, releases its resources, or
has a command or an evaluation of `hop repl` pending. Afterwards `chaos_checks` compares the run with what its
scripts wrote themselves. Exits with 1 after a violation; each one names the command that replays its round
alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks import chaos_checks as checks
from benchmarks.chaos_containers import Containers, podman_service
from benchmarks.chaos_faults import FAULTS, Fault, find_process, inject, schedule, thaw
from benchmarks.harness import say
from benchmarks.local_server import FINAL, LocalServer, gone_or_zombie, hop_command, local_server
from benchmarks.podman_service import IMAGE, missing_programs
from hopyard.domain.ids import Digest
from hopyard.errors import Conflict, HopyardError, ServerUnavailable

REPLICAS = 4
SETTINGS = {
    "nodes": [
        {"id": name, "cpus": 2, "memory": "4G", "gpus": "A100:2", "labels": {"rack": name}} for name in "ab"
    ]
}
ROLES: dict[str, dict[str, Any]] = {
    "processes": {},
    "containers": {"image": IMAGE},
    "torchrun": {"launcher": "torchrun", "processes": 1},
    "restarts": {"restart": {"mode": "on-failure", "limit": 3, "backoff_s": 0.2}},
}
RATES = (0.5, 0.25)  # that the commands set
BEFORE_FAULT = 3  # steps of the training before the phases that need one
EVALUATED = """
import pathlib as _pathlib, time as _time
_pathlib.Path(p.ledger, "evaluating").touch()
_time.sleep(0.7)
step, total.value
"""
SCRIPT = Path(__file__).with_name("chaos_training.py")
Result = TypeVar("Result")


class Stuck(Exception):
    """Something has not happened in time."""


class Chaos:
    """The rounds on one server. ledgers: the folder of what the scripts write. patience_s: the longest wait
    for anything in a round."""

    def __init__(
        self, server: LocalServer, ledgers: Path, patience_s: float, containers: Containers | None
    ) -> None:
        self.server, self.ledgers, self.patience_s = server, ledgers, patience_s
        self.containers = containers
        self._prompt: subprocess.Popen[str] | None = None
        self.code: Digest = server.upload({"train.py": SCRIPT.read_text(), "urgent.py": "print('done')\n"})

    # -- requests and waits ----------------------------------------------------------------------------------

    def ask(self, request: Callable[[], Result]) -> Result:
        """Repeats a request while the server is away. Raises Stuck."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return request()
            except ServerUnavailable as error:
                if time.monotonic() > deadline:
                    raise Stuck(f"the server does not answer: {error}") from error
                time.sleep(0.05)

    def get(self, path: str, **query: str | int) -> Any:
        return self.ask(lambda: self.server.client.get(path, **query))

    def wait(self, condition: Callable[[], Result], description: str) -> Result:
        """Waits for a true value, and returns it. Raises Stuck."""
        deadline = time.monotonic() + self.patience_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise Stuck(f"not in {self.patience_s:g} s: {description}")
            time.sleep(0.02)
        return value

    def remain(self, find: Callable[[], Sequence[str]]) -> bool:
        """Returns whether anything that `find` finds is still there in the end."""
        try:
            self.wait(lambda: not find(), "nothing is left")
        except Stuck:
            return True
        return False

    # -- one round -------------------------------------------------------------------------------------------

    def play(self, fault: Fault) -> tuple[str, list[str]]:
        """Returns the outcome of a round and its violations."""
        ledger = self.ledgers / str(fault.number)
        ledger.mkdir()
        try:
            round = self._run(fault, ledger)
        except (Stuck, HopyardError) as stuck:
            thaw(self.server)
            return "stuck", [str(stuck)]
        finally:
            if self._prompt is not None and self._prompt.poll() is None:
                self._prompt.kill()
        violations = [
            *checks.end_violations(round),
            *checks.metric_violations(round),
            *checks.command_violations(round),
            *checks.evaluation_violations(round),
            *checks.checkpoint_violations(self.server, round, ledger),
        ]
        leftovers: dict[str, Callable[[], list[str]]] = {
            "processes are left": lambda: checks.leftover_processes(self.server, str(ledger)),
            "not given back": lambda: checks.held_resources(self.get("/nodes")["nodes"]),
            "folders are left": lambda: [str(path) for path in self.server.home.attempts.glob("[!.]*")],
        }
        if self.containers is not None:
            leftovers["of containers are left"] = self.containers.leftovers
        for description, find in leftovers.items():
            if self.remain(find):
                violations.append(f"{description}: {'; '.join(find())}")
        return round.outcome + ("" if round.is_hit else " (there was no such process)"), violations

    def _run(self, fault: Fault, ledger: Path) -> checks.Round:
        self._prompt = None
        run = self._submit(["python", "train.py"], {"ledger": str(ledger)}, mark=str(ledger), mode=fault.mode)
        accepted, urgent = self._enter_phase(fault, run, ledger)
        time.sleep(fault.delay_s)
        is_hit = self._inject(fault, run)
        ended = self._finish(fault, run, ledger, urgent)
        evaluation = self._end_evaluation()
        series = {
            rank: self.get(f"/runs/{run}/metrics", names="total,lr", rank=rank)["series"]
            for rank in range(REPLICAS)
        }
        empty: dict[str, list[float]] = {"steps": [], "values": []}
        last = ledger / "last"
        return checks.Round(
            fault=fault,
            run=ended,
            attempts=self.get(f"/runs/{run}/attempts")["attempts"],
            commands=self.get(f"/runs/{run}/commands")["commands"],
            events=self.get(f"/runs/{run}/events")["events"],
            checkpoints=self.get(f"/runs/{run}/checkpoints")["checkpoints"],
            series={rank: {"total": empty, "lr": empty, **found} for rank, found in series.items()},
            ledger=ledger,
            steps=int(last.read_text()) + 1 if last.exists() else 0,
            replicas=REPLICAS,
            is_hit=is_hit,
            accepted=accepted,
            evaluation=evaluation,
        )

    def _submit(
        self,
        command: Sequence[str],
        params: dict[str, Any],
        *,
        mark: str,
        mode: str = "processes",
        priority: int = 50,
    ) -> str:
        role = {
            "command": list(command),
            "replicas": REPLICAS,
            "resources": {"cpu_milli": 1000, "gpus": 1},
            **ROLES[mode],
        }
        spec = {
            "project": "chaos",
            "roles": [role],
            "code": self.code,
            "params": params,
            "env": {"CHAOS_MARK": mark},
            "environment": {} if mode == "containers" else {"interpreter": sys.executable},
            "priority": priority,
        }
        return self.server.submit(spec)

    def _enter_phase(self, fault: Fault, run: str, ledger: Path) -> tuple[list[int], str]:
        """Brings the run into the phase. Returns the numbers of accepted commands, and the run that preempts
        it."""
        if fault.phase == "start":
            return [], ""
        if fault.phase == "checkpoint":
            self.wait((ledger / "saving").exists, "the run saves a checkpoint")
            return [], ""
        self.wait(lambda: self._has_trained(ledger), "the run trains")
        if fault.phase == "preemption":
            urgent = self._submit(["python", "urgent.py"], {}, mark=str(ledger), priority=90)
            self.wait(
                lambda: self.get(f"/runs/{run}/attempts")["attempts"][0]["preempt_reason"],
                "the run is preempted",
            )
            return [], urgent
        if fault.phase == "training":
            return [], ""
        if fault.phase == "set pending":
            return [self._command(run, "set", params={"lr": rate}) for rate in RATES], ""
        if fault.phase == "evaluation":
            self._evaluate(run, fault.rank)
            self.wait((ledger / "evaluating").exists, "a statement is evaluated")
            return [], ""
        if fault.phase == "release":
            return [self._command(run, "pause", release=True)], ""
        number = self._command(run, "pause")
        if fault.phase == "pause":
            self.wait(lambda: self.get(f"/runs/{run}")["phase"] == "paused", "the run is paused")
        return [number], ""

    def _has_trained(self, ledger: Path) -> bool:
        path = ledger / "1.0.jsonl"
        return path.exists() and path.read_text().count("\n") >= BEFORE_FAULT

    def _command(self, run: str, kind: str, **arguments: Any) -> int:
        body = {"kind": kind, **arguments}
        return int(self.ask(lambda: self.server.client.post(f"/runs/{run}/commands", body))["number"])

    def _evaluate(self, run: str, rank: int) -> None:
        """Starts `hop repl` with statements that take longer than the fault's delay."""
        self._prompt = subprocess.Popen(
            [*hop_command(), "repl", run, "--rank", str(rank), "-c", EVALUATED],
            env=self.server.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _end_evaluation(self) -> tuple[int, str, str] | None:
        """Returns the exit code and the output of `hop repl`. Raises Stuck."""
        if self._prompt is None:
            return None
        try:
            output, error = self._prompt.communicate(timeout=self.patience_s)
        except subprocess.TimeoutExpired as expired:
            raise Stuck("`hop repl` does not end") from expired
        return self._prompt.returncode, output, error

    def _inject(self, fault: Fault, run: str) -> bool:
        """Returns whether the fault found its process. It may have ended, as in a preemption."""
        attempt = self.wait(lambda: self.get(f"/runs/{run}")["attempt"], "an attempt")["id"]
        deadline = time.monotonic() + (self.patience_s if fault.phase == "start" else 1.0)
        while (process := find_process(self.server, fault, attempt, self.containers)) is None:
            if time.monotonic() > deadline or self.get(f"/runs/{run}")["phase"] in FINAL:
                return False
            time.sleep(0.002)
        inject(fault, process)
        if self.containers is not None and (fault.kind, fault.part) == ("kill", "service"):
            time.sleep(fault.lasting_s)
            self.containers.service.start()
        if (fault.kind, fault.part) == ("kill", "server"):
            gone_or_zombie(process, timeout_s=self.patience_s)
            time.sleep(fault.lasting_s)
            self.server.start()
        return True

    def _finish(self, fault: Fault, run: str, ledger: Path, urgent: str) -> dict[str, Any]:
        """Resumes the run while it is paused, lets it end once no command is pending, and returns it."""
        asked_at, resumes = float("-inf"), "pause" in fault.phase or fault.phase == "release"
        settled, found = False, dict[str, Any]()

        def has_ended() -> bool:
            nonlocal asked_at, settled, found
            found = self.get(f"/runs/{run}")
            is_paused = found["phase"] == "paused" or found["held_by"] is not None
            if resumes and is_paused and time.monotonic() > asked_at + 5:
                with suppress(Conflict):  # an earlier one has just been applied
                    self._command(run, "resume")
                asked_at = time.monotonic()
            if not settled:
                commands = self.get(f"/runs/{run}/commands")["commands"]
                settled = all(command["state"] != "pending" for command in commands) and (
                    not resumes or any(command["kind"] == "resume" for command in commands)
                )
                if settled:
                    (ledger / "gate").touch()
            return found["phase"] in FINAL

        try:
            self.wait(has_ended, "the end of the run")
        except Stuck as stuck:
            commands = [(c["kind"], c["state"]) for c in self.get(f"/runs/{run}/commands")["commands"]]
            raise Stuck(f"{stuck}; it is {found['phase']}, commands {commands}") from stuck
        if urgent:
            self.wait(lambda: self.get(f"/runs/{urgent}")["phase"] in FINAL, "the end of the urgent run")
            if (phase := self.get(f"/runs/{urgent}")["phase"]) != "succeeded":
                raise Stuck(f"the run that preempts {phase}")
        return found


def play_all(faults: Sequence[Fault], seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Plays the rounds, with a line for each, and returns their records. After a violation, the rest begins
    with a new server and home."""
    records: list[dict[str, Any]] = []
    pending = [playable(fault) for fault in faults]
    while pending:
        folder = Path(tempfile.mkdtemp(prefix="hopyard-chaos-"))
        is_kept = False
        try:
            with rounds(
                folder, options.patience, any(each.mode == "containers" for each in pending)
            ) as chaos:
                while pending:
                    records.append(play_round(chaos, pending.pop(0), seed))
                    if records[-1]["violations"]:
                        is_kept = options.keep
                        break
        finally:
            if is_kept:
                say(f"  kept: {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
    return records


def playable(fault: Fault) -> Fault:
    """Returns the fault, or the nearest one that this machine can play."""
    reason = missing_programs() if fault.mode == "containers" else ""
    if fault.mode == "torchrun" and importlib.util.find_spec("torch") is None:
        reason = "needs PyTorch"
    return fault.without(reason) if reason else fault


def _restore_environment(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


@contextmanager
def rounds(folder: Path, patience_s: float, has_containers: bool) -> Iterator[Chaos]:
    """Starts a server in the folder, with Podman's service for the rounds in containers."""
    ledgers = folder / "ledgers"
    ledgers.mkdir()
    before = dict(os.environ)
    with ExitStack() as stack:
        service = stack.enter_context(podman_service(ledgers)) if has_containers else None
        os.environ.update(service.variables if service is not None else {})
        stack.callback(_restore_environment, before)
        server = stack.enter_context(local_server(folder, settings=SETTINGS))
        containers = None if service is None else Containers(service, server.home.root)
        yield Chaos(server, ledgers, patience_s, containers)


def play_round(chaos: Chaos, fault: Fault, seed: int) -> dict[str, Any]:
    """Plays one round, prints its line, and returns its record."""
    began, pid = time.monotonic(), chaos.server.pid
    outcome, violations = chaos.play(fault)
    if (fault.kind, fault.part) != ("kill", "server") and not psutil.pid_exists(pid):
        violations.append("the server has ended by itself")
    seconds = round(time.monotonic() - began, 1)
    outcome += f" ({fault.missing})" if fault.missing else ""
    say(f"seed {seed} round {fault.number}: {fault.text}, {fault.phase}: {outcome}, {seconds} s")
    for violation in violations:
        say(f"  VIOLATION {violation}")
    if violations:
        say(f"  replay: python -m benchmarks.chaos --seed {seed} --only {fault.number}")
    return {
        "round": fault.number,
        "fault": fault.text,
        "mode": fault.mode,
        "missing": fault.missing,
        "phase": fault.phase,
        "outcome": outcome,
        "violations": violations,
        "seconds": seconds,
    }


def summary(records: Sequence[dict[str, Any]], seed: int) -> str:
    """Returns the counts of rounds by kind of fault, by part and by phase."""
    bad = [record["round"] for record in records if record["violations"]]
    lines = [f"{len(records)} rounds of seed {seed}, {len(bad)} with violations"]
    for name, key in (
        ("faults", lambda r: " ".join(r["fault"].split()[:2])),
        ("phases", lambda r: r["phase"]),
        ("modes", lambda r: r["mode"]),
    ):
        counts = Counter(key(record) for record in records)
        lines.append(f"  {name}: " + ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
    for reason, count in sorted(Counter(r["missing"] for r in records if r["missing"]).items()):
        lines.append(f"  {count} rounds {reason}")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (default: 1)")
    parser.add_argument("--rounds", type=int, default=100, help="how many rounds (default: 100)")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin at this round (default: 0)")
    parser.add_argument("--only", type=int, metavar="K", help="play only this round, counted from 0")
    parser.add_argument(
        "--mode",
        action="append",
        choices=sorted(FAULTS),
        help="play only rounds in which the replicas run like this (repeatable)",
    )
    parser.add_argument("--patience", type=float, default=180.0, help="seconds until something is stuck")
    parser.add_argument("--keep", action="store_true", help="keep the homes of rounds with violations")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.first < 0 or (options.only or 0) < 0 or options.patience <= 0:
        parser.error("--rounds and --patience must be positive, --first and --only not negative")
    # so that servers and folders are removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    first, count = (options.first, options.rounds) if options.only is None else (options.only, 1)
    played = (fault for fault in schedule(options.seed, REPLICAS) if fault.number >= first)
    faults = list(islice((fault for fault in played if fault.mode in (options.mode or FAULTS)), count))
    records = play_all(faults, options.seed, options)
    bad = sum(bool(record["violations"]) for record in records)
    if options.json:
        print(json.dumps({"seed": options.seed, "rounds": records, "violated": bad}))
    else:
        print(summary(records, options.seed))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(run())
