"""What the cluster store costs beside a long queue: snapshots, plans, observations, and a gang's whole life.

    python -m benchmarks.store [--waiting 10000] [--running 3000] [--nodes 1000]

Every round fills a fresh SQLite file through the store's own calls: `running` gangs of one GPU each run,
`waiting` more wait. Bounds, on the same file and disk: reading the rows of all that wait with the bare
driver, which is what a snapshot would cost at least that keeps nothing in mind; and inserting and updating as
many rows as a plan does in one bare commit.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from benchmarks.harness import Arguments, Report, main, ratio, say
from benchmarks.local_server import scratch_folder
from benchmarks.peers.find import PeerPython
from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation, Snapshot
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import AttemptId, NodeId, new_run_id
from hopyard.domain.plan_record import HoldRecord, PlanRecord
from hopyard.domain.resources import Gpu, Resources
from hopyard.domain.run import RoleSpec, RunSpec
from hopyard.interfaces.run_store import NewRun
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.runs import SqlRunStore

NAME = "store"
ENGINE, GPUS, PER_PLAN, TIMES = "waiting", 8, 20, 9
START = datetime(2030, 1, 1, tzinfo=UTC)
ROLE = RoleSpec(("python", "main.py"), resources=Resources(1000, 2**30, 1))
RUNNING = (ReplicaStatus(0, ReplicaPhase.RUNNING),)
ENDED = (ReplicaStatus(0, ReplicaPhase.EXITED, exit=Exit(ExitKind.EXIT_CODE, 0, "finished")),)


class StoreFixture:
    """A store over a fresh database, with nodes, gangs that run and gangs that wait."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.database = Database.open(folder / "hopyard.db")
        self.runs, self.cluster = SqlRunStore(self.database), SqlClusterStore(self.database)
        cards = tuple(Gpu(index, "A100") for index in range(GPUS))
        self.seen = tuple(Node(NodeId(f"n{at:05}"), ENGINE, 96_000, 2**40, cards) for at in range(nodes))
        self.free = [(node.id, card) for node in self.seen for card in range(GPUS)]
        self.live: dict[AttemptId, tuple[NodeId, int]] = {}
        self.seconds = self.made = self.epoch = 0

    def now(self) -> datetime:
        self.seconds += 1
        return START + timedelta(seconds=self.seconds)

    async def fill(self, running: int, waiting: int) -> None:
        lease = await self.cluster.acquire_lease("benchmark", now=self.now(), ttl=timedelta(days=365))
        assert lease is not None
        self.epoch = lease.epoch
        await self.observe()
        await self.submit(running)
        while len(self.live) < running:
            await self.place(min(500, running - len(self.live)))
        await self.observe()
        await self.submit(waiting)
        await self.snapshot()

    async def submit(self, count: int) -> None:
        while count > 0:
            some = [self._new() for _ in range(min(count, 500))]
            await self.runs.create(some, now=self.now())
            count -= len(some)

    def _new(self) -> NewRun:
        self.made += 1
        spec = RunSpec(f"project-{self.made % 7}", (ROLE,))
        return NewRun(
            new_run_id(START + timedelta(milliseconds=self.made), self.made.to_bytes(7)),
            f"user-{self.made % 50}",
            spec,
        )

    async def snapshot(self) -> Snapshot:
        return await self.cluster.snapshot(now=self.now())

    async def place(self, count: int) -> float:
        """Seconds that applying a plan of `count` placements took."""
        snapshot = await self.snapshot()
        wanted = tuple(self._placement(gang) for gang in snapshot.pending[:count])
        began = time.perf_counter()
        result = await self.cluster.apply(
            PlanRecord(snapshot.version, wanted), now=self.now(), epoch=self.epoch
        )
        took = time.perf_counter() - began
        assert len(result.applied) == count, result.rejected
        for attempt, placement in zip(result.attempts, wanted, strict=True):
            (one,) = placement.assignments
            self.live[attempt] = (one.node, one.gpus[0])
        return took

    def _placement(self, gang: Gang) -> Placement:
        node, card = self.free.pop()
        return Placement(gang, (Assignment(0, node, (card,)),))

    async def observe(self, ended: Sequence[AttemptId] = ()) -> None:
        gone = set(ended)
        statuses = tuple(
            AttemptStatus(attempt, ENDED if attempt in gone else RUNNING) for attempt in self.live
        )
        recorded = await self.cluster.record_observation(
            ENGINE, Observation(self.seen, statuses), now=self.now()
        )
        for one in recorded.ended:
            self.free.append(self.live.pop(one.attempt))


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def one_round(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    fixture = StoreFixture(folder, options.nodes)
    try:
        await fixture.fill(options.running, options.waiting)
        found: dict[str, list[float]] = {}
        for _ in range(TIMES):
            await fixture.submit(1)
            found.setdefault("snapshot_after_one", []).append(await timed(fixture.snapshot))
            found.setdefault("snapshot_unchanged", []).append(await timed(fixture.snapshot))
            found.setdefault("apply_20", []).append(await fixture.place(PER_PLAN))
            await fixture.observe()
            found.setdefault("record_unchanged", []).append(await timed(fixture.observe))
        await fixture.submit(PER_PLAN * TIMES)
        snapshot = await fixture.snapshot()
        holds = [
            HoldRecord(gang.id, HoldReason.NO_CAPACITY, "waits for a GPU", at)
            for at, gang in enumerate(snapshot.pending, 1)
        ]
        note = partial(
            fixture.cluster.record_holds, based_on=snapshot.version, now=fixture.now(), epoch=fixture.epoch
        )
        await note(holds)
        moved = [HoldRecord(hold.gang, hold.reason, hold.detail, hold.position - 1) for hold in holds[1:]]
        found["holds_again"] = [await timed(lambda: note(moved))]
        medians = {name: statistics.median(values) * 1000 for name, values in found.items()}
        return medians | {"gang_cpu": await cpu_per_gang(fixture, options.turns)} | bound_ms(folder)
    finally:
        await fixture.database.close()


async def cpu_per_gang(fixture: StoreFixture, turns: int) -> float:
    """Returns the milliseconds of this process's CPU time per gang, over cycles in which 20 gangs are
    submitted, start, and end."""
    began = time.process_time()
    for _ in range(turns):
        await fixture.submit(PER_PLAN)
        await fixture.snapshot()
        await fixture.place(PER_PLAN)
        await fixture.observe()
        await fixture.observe(ended=list(fixture.live)[:PER_PLAN])
    return (time.process_time() - began) / turns / PER_PLAN * 1000


def bound_ms(folder: Path) -> dict[str, float]:
    """The bounds, in milliseconds."""
    with sqlite3.connect(folder / "hopyard.db") as reading:
        began = time.perf_counter()
        reading.execute(
            "SELECT id, gang, submitted_at, queue, priority, user_name, script, wants FROM runs WHERE "
            "phase = 'queued'"
        ).fetchall()
        read = time.perf_counter() - began
    writing = sqlite3.connect(folder / "bare.db", isolation_level=None)
    writing.execute("PRAGMA journal_mode=WAL")
    writing.execute("PRAGMA synchronous=FULL")
    writing.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, phase TEXT)")
    writing.execute("CREATE TABLE attempts (id TEXT PRIMARY KEY, run TEXT, placement TEXT)")
    writing.executemany(
        "INSERT INTO runs VALUES (?, 'queued')", [(str(at),) for at in range(PER_PLAN * TIMES)]
    )
    times: list[float] = []
    for number in range(TIMES):
        ids = [str(number * PER_PLAN + at) for at in range(PER_PLAN)]
        began = time.perf_counter()
        writing.execute("BEGIN IMMEDIATE")
        writing.executemany(
            "INSERT INTO attempts VALUES (?, ?, '[[\"n00001\",[1],1000]]')",
            [(f"{run}.1", run) for run in ids],
        )
        writing.executemany(
            "UPDATE runs SET phase = 'starting' WHERE id = ? AND phase = 'queued'", [(run,) for run in ids]
        )
        writing.execute("COMMIT")
        times.append(time.perf_counter() - began)
    writing.close()
    return {"bare_read": read * 1000, "bare_commit": statistics.median(times) * 1000}


NOTES = {
    "snapshot_after_one": "one more run was submitted since the last",
    "snapshot_unchanged": "nothing was",
    "apply_20": "a plan of 20 placements, durably",
    "record_unchanged": "a complete observation in which nothing is new",
    "holds_again": "why all wait: each moved up by one, nothing else is new",
    "gang_cpu": (
        "CPU time a gang: submitted, seen, placed, running, ended, in turns of 20 with complete observations"
    ),
}
BOUNDS = {
    "bare_read": "all waiting rows, bare driver",
    "bare_commit": "20 inserts and 20 updates in one bare commit",
}


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    del peers  # no peer has such a store
    report = Report(
        NAME,
        {
            "waiting": options.waiting,
            "running": options.running,
            "nodes": options.nodes,
            "turns": options.turns,
        },
    )
    rounds: list[dict[str, float]] = []
    for number in range(options.repeats):
        with scratch_folder() as folder:
            rounds.append(asyncio.run(one_round(folder, options)))
        say(
            f"round {number + 1}/{options.repeats}: "
            + ", ".join(f"{name} {value:.3g}" for name, value in rounds[-1].items())
        )
    values = {name: [found[name] for found in rounds] for name in rounds[0]}
    for name, note in NOTES.items():
        report.add(name, "ms", values[name], note=note)
    for name, note in BOUNDS.items():
        report.add(name, "ms", values[name], "bound", note)
    report.measurements.append(ratio("snapshot_over_read", values["snapshot_after_one"], values["bare_read"]))
    report.measurements.append(ratio("apply_over_commit", values["apply_20"], values["bare_commit"]))
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--waiting", type=int, default=10_000, help="gangs that wait")
    parser.add_argument("--running", type=int, default=3000, help="gangs that run")
    parser.add_argument("--nodes", type=int, default=1000, help=f"of {GPUS} GPUs")
    parser.add_argument(
        "--turns", type=int, default=50, help=f"of {PER_PLAN} gangs each, to measure what a gang costs"
    )
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if options.waiting < PER_PLAN * TIMES:
        parser.error(f"--waiting: {TIMES} plans of {PER_PLAN} need {PER_PLAN * TIMES} at least")
    if options.nodes * GPUS < options.running + PER_PLAN * (TIMES + 1):
        parser.error(
            f"--nodes: {options.nodes} nodes of {GPUS} GPUs are too few for {options.running} that run "
            f"and {PER_PLAN * TIMES} that start"
        )
    return main(NAME, parser, measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
