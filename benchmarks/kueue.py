"""Kueue's topology-aware performance case, in real time, through the real controller and a SQLite store.

    python -m benchmarks.kueue [--share 1.0] [--json]

15,000 gangs with rack constraints in 30 queues of 5 cohorts, submitted on arrival; the engine only waits (see
benchmarks/kueue_case.py). In the same run: the same policy in the simulator, where decisions cost no time,
and the bound before which nothing can end. Every gang is checked: it is complete, and its racks match its
request.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean

from benchmarks.harness import Arguments, Report, main
from benchmarks.kueue_case import KINDS, Arrival, arrivals, bound_s, nodes, queues, racks_used, spec
from benchmarks.kueue_stages import STAGES, Stages, stage_lines
from benchmarks.local_server import scratch_folder
from benchmarks.peers.find import PeerPython
from benchmarks.waiting_engine import WaitingEngine
from hopyard.controller.clock import SystemClock
from hopyard.controller.controller import Controller
from hopyard.controller.gc_schedule import collect_young
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.gang import Closeness
from hopyard.domain.ids import GangId, RunId, new_run_id
from hopyard.domain.run import RunPhase
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.interfaces.run_store import NewRun
from hopyard.scheduler.policies.registry import POLICIES
from hopyard.simulator.settings import SimulatedCluster
from hopyard.simulator.simulate import simulate
from hopyard.simulator.workload import WorkloadRun, sorted_workload
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.queues import SqlQueueStore
from hopyard.stores.sql.runs import SqlRunStore

NAME = "kueue"
KUEUE_S = 401.0  # the mean of ten runs that Kueue publishes
OBSERVE_EVERY = timedelta(seconds=1)
SUBMIT_EVERY_S = 0.01
GIVE_UP_S = 600.0
USER = "bench"
CLASS_OF = {kind.priority: kind.name for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Outcome:
    """seconds: from the first submission to the end of the last run.
    waits_s: to the first admission, by class."""

    seconds: float
    waits_s: Mapping[str, list[float]]
    preemptions: int = 0
    cpu_s: float = 0.0
    stages_s: Mapping[str, list[float]] = field(default_factory=dict)


# as every benchmark
def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:  # noqa: ARG001
    report = Report(NAME, {"share": options.share, "policy": options.policy, "repeats": options.repeats})
    ideal = simulate_case(options.share, options.policy)
    collect_young()  # as the server does
    found = []
    for _ in range(options.repeats):
        with scratch_folder() as folder:
            found.append(asyncio.run(measure_real_time(folder, arrivals(options.share), options.policy)))
    bound = bound_s(options.share)
    report.add(
        "all_done",
        "s",
        [one.seconds for one in found],
        note="first submission to the end of the last of all gangs",
    )
    report.add("bound", "s", [bound], "bound", "a queue's work over its quota")
    report.add("simulated", "s", [ideal.seconds], "bound", "the same policy with decisions that cost no time")
    if options.share == 1.0:
        report.add("published", "s", [KUEUE_S], "peer", "Kueue's own figure, on its machine")
    report.add("over_bound", "x", [one.seconds / bound for one in found], "ratio")
    for kind in KINDS:
        waits, free = [fmean(one.waits_s[kind.name]) for one in found], fmean(ideal.waits_s[kind.name])
        report.add(f"wait_{kind.name}", "s", waits, note="mean from submission to admission")
        report.add(f"wait_{kind.name}_simulated", "s", [free], "bound")
        report.add(
            f"wait_{kind.name}_over_simulated",
            "x",
            [wait / free for wait in waits] if free else [float("inf")],
            "ratio",
        )
    report.add("preemptions", "attempts", [float(one.preemptions) for one in found])
    report.add(
        "cpu",
        "s",
        [one.cpu_s for one in found],
        note="of the process that holds controller, policy and store",
    )
    for stage in STAGES:
        report.add(f"stage_{stage}", "ms", [fmean(one.stages_s[stage]) * 1000 for one in found])
    report.notes.extend(line for one in found for line in stage_lines(one.stages_s))
    return report


async def measure_real_time(folder: Path, due: Sequence[Arrival], policy: str) -> Outcome:
    """Raises RuntimeError when a gang was started in part, against its constraint, or did not end."""
    database = Database.open(folder / "hopyard.db")
    engine, clock = WaitingEngine(nodes("waiting")), SystemClock()
    runs, cluster = SqlRunStore(database), SqlClusterStore(database)
    stages = Stages(engine, cluster, POLICIES[policy]())
    await SqlQueueStore(database).replace(queues())
    controller = Controller(
        cluster=stages,
        runs=runs,
        engine=engine,
        policy=stages,
        clock=clock,
        launch_builder=LaunchBuilder(
            runs, server_url="http://127.0.0.1:1", sign_token=lambda attempt: f"token of {attempt}"
        ),
        observe_interval=OBSERVE_EVERY,
    )
    loops = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await wait_for_nodes(cluster)
        began, cpu = time.monotonic(), time.process_time()
        submitted = await submit(controller, runs, due, began)
        while (await runs.count_by_phase()).get(RunPhase.SUCCEEDED, 0) < len(due):
            if loops.done():
                loops.result()
            if time.monotonic() - began > GIVE_UP_S:
                raise RuntimeError(f"not done after {GIVE_UP_S:g} s: {await runs.count_by_phase()}")
            await asyncio.sleep(0.05)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    finally:
        loops.cancel()
        await asyncio.gather(loops, return_exceptions=True)
    try:
        waits, preemptions = await read_waits(runs, submitted)
    finally:
        await database.close()
    check_gangs(engine, submitted)
    return Outcome(seconds, waits, preemptions, cpu, stages.spans_s())


async def wait_for_nodes(cluster: SqlClusterStore) -> None:
    """Waits until the controller has recorded the engine's nodes."""
    while not await cluster.nodes():  # noqa: ASYNC110 - there is no notification
        await asyncio.sleep(0.01)


async def submit(
    controller: Controller, runs: SqlRunStore, due: Sequence[Arrival], began: float
) -> dict[RunId, Arrival]:
    """Submits each gang at its time, and gangs that became due meanwhile together."""
    found: dict[RunId, Arrival] = {}
    at = 0
    while at < len(due):
        now_s = time.monotonic() - began
        upto = at
        while upto < len(due) and due[upto].at_s <= now_s:
            upto += 1
        if upto > at:
            now = datetime.now(UTC)
            batch = [
                NewRun(new_run_id(now, number.to_bytes(7, "little")), USER, spec(due[number]))
                for number in range(at, upto)
            ]
            found.update((new.id, due[number]) for new, number in zip(batch, range(at, upto), strict=True))
            controller.add_submitted(await runs.create(batch, now=now))
            at = upto
        await asyncio.sleep(SUBMIT_EVERY_S)
    return found


async def read_waits(
    runs: SqlRunStore, submitted: Mapping[RunId, Arrival]
) -> tuple[dict[str, list[float]], int]:
    waits: dict[str, list[float]] = defaultdict(list)
    preemptions = 0
    for run_id, arrival in submitted.items():
        run, attempts = await runs.get(run_id), await runs.attempts(run_id)
        waits[arrival.kind.name].append((attempts[0].placed_at - run.submitted_at).total_seconds())
        preemptions += len(attempts) - 1
    return waits, preemptions


def check_gangs(engine: WaitingEngine, submitted: Mapping[RunId, Arrival]) -> None:
    for launch in engine.launches:
        gang = launch.placement.gang
        arrival = submitted[RunId(gang.id)]
        places = [str(assignment.node) for assignment in launch.placement.assignments]
        if len(places) != arrival.kind.pods:
            raise RuntimeError(f"{len(places)} of {arrival.kind.pods} replicas of {gang.id} were started")
        if arrival.topology.rule is Closeness.SAME and racks_used(places) != 1:
            raise RuntimeError(f"{gang.id} must be in one rack, and is on {places}")
        if arrival.topology.rule is Closeness.BALANCED:
            by_rack: dict[str, int] = defaultdict(int)
            for place in places:
                by_rack[place.partition("-")[0]] += 1
            if any(count % arrival.topology.slice for count in by_rack.values()):
                raise RuntimeError(f"a slice of {gang.id} is split over racks: {dict(by_rack)}")


def simulate_case(share: float, policy: str) -> Outcome:
    """Simulates the same arrivals and policy, with decisions that cost no time."""
    cluster = SimulatedCluster(nodes("time"), queues())
    runs = [WorkloadRun(spec(one), one.at_s, one.kind.runs_s, USER) for one in arrivals(share)]
    policy_calls = CountingPolicy(POLICIES[policy]())
    report = simulate(sorted_workload(NAME, runs), cluster, policy_calls)
    if report.ended != len(runs):
        raise RuntimeError(f"the simulation ended {report.ended} of {len(runs)} runs: {report.unfinished}")
    return Outcome(report.makespan_s, policy_calls.waits_s, report.losses.preemptions)


class CountingPolicy:
    """A policy that notes when each gang was placed first, by class."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy, self._placed = policy, set[GangId]()
        self.waits_s: dict[str, list[float]] = defaultdict(list)

    def __call__(self, snapshot: Snapshot, /) -> Plan:
        plan = self._policy(snapshot)
        for gang in (placement.gang for placement in plan.place):
            if gang.id not in self._placed:
                self._placed.add(gang.id)
                self.waits_s[CLASS_OF[gang.priority]].append(
                    (snapshot.now - gang.submitted_at).total_seconds()
                )
        return plan


def _share(text: str) -> float:
    least = 1 / min(kind.count for kind in KINDS)
    if not least <= (share := float(text)) <= 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not between {least} (one large gang for each queue) and 1"
        )
    return share


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument(
        "--share", type=_share, default=1.0, help="share of each queue's gangs that arrive (default: all)"
    )
    parser.add_argument("--policy", default="hopyard", choices=sorted(POLICIES))
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
