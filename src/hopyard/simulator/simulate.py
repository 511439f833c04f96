"""Playing a workload on a cluster: the real controller over an engine whose runs only take time.

Time jumps to the next event when nothing is left to do, and not before. Equal arguments give equal reports.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hopyard.controller.controller import Controller
from hopyard.controller.launches import Composer
from hopyard.domain.attempt import ReplicaStatus
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import PREEMPT_GRACE_S, Plan, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, new_run_id
from hopyard.domain.queue import Amounts
from hopyard.domain.run import RunSpec
from hopyard.errors import SpecError
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.interfaces.run_store import NewRun, RunStore
from hopyard.scheduler.placement.fit import never_fits
from hopyard.simulator.agenda import Agenda, Happening
from hopyard.simulator.clock import ManualClock
from hopyard.simulator.engine import Live, TimeEngine, Work
from hopyard.simulator.fairness import FairShares
from hopyard.simulator.fragments import Shapes
from hopyard.simulator.ledger import Ledger
from hopyard.simulator.loop import Stillness, run
from hopyard.simulator.policies import DEFAULT, new_policy
from hopyard.simulator.queues import check_queues, tree_of
from hopyard.simulator.record import Record
from hopyard.simulator.report import Report, Timing, TooLarge, report_of
from hopyard.simulator.reservations import Kept, granted
from hopyard.simulator.settings import Cluster, Progress, Settings
from hopyard.simulator.stores import Stores, WholeMoments, open_stores
from hopyard.simulator.watched import Watched
from hopyard.simulator.workload import Workload

FOR_EVER = timedelta(days=36500)
PATIENCE = timedelta(days=30)  # nothing happened for so long: nothing will
# times that each machine is lost, on average, while no run comes any further: none ever will
MOST_LOSSES = 1000
MOST_ATTEMPTS = 1_000_000  # the engine loses runs only when told to lose nodes


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: str | SchedulingPolicy = DEFAULT,
    settings: Settings | None = None,
) -> Report:
    """Play the workload once. Raises SpecError for an unknown policy or store, for reservations that cannot
    be honoured and where machines are lost too often for any run to end, and whatever the policy raises."""
    chosen = new_policy(policy) if isinstance(policy, str) else policy
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    return run(
        lambda stillness: Simulation(
            workload, cluster, name, chosen, settings or Settings(), stillness
        ).play()
    )


class Simulation:
    """One play. Implements what the engine tells (`hopyard.simulator.engine.Hears`)."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        name: str,
        policy: SchedulingPolicy,
        settings: Settings,
        stillness: Stillness,
    ) -> None:
        self._workload, self._cluster, self._name, self._settings, self._stillness = (
            workload,
            cluster,
            name,
            settings,
            stillness,
        )
        self._policy = Watched(policy, self._planned)
        self._tree = cluster.queues or tree_of(workload)
        check_queues(workload, self._tree)
        self._reservations = granted(
            cluster.asked, cluster.nodes, self._tree, workload.begin, cluster.reservations
        )
        self._clock, self._agenda = ManualClock(workload.begin), Agenda()
        self._chance = random.Random(settings.seed)
        self._works: dict[RunId, Work] = {}
        self._refused: list[TooLarge] = []
        self._to_come = 0
        self._ledger = Ledger(cluster.nodes)
        shapes = Shapes(role for one in workload.runs for role in one.spec.gang_roles())
        self._record = Record(
            workload.begin,
            self._ledger,
            shapes,
            FairShares(self._tree, cluster.nodes),
            [Kept(one, cluster.nodes, self._tree) for one in self._reservations],
        )
        self._engine = TimeEngine(self._clock, self._agenda, cluster.nodes, self._works, settings.costs, self)
        self._watched_at = 0.0
        self._losses = 0  # of machines since a run last came any further

    async def play(self) -> Report:
        began = time.perf_counter()
        driver = asyncio.current_task()
        assert driver is not None
        async with open_stores(self._settings.store, self._stillness) as stores:
            self._runs, moments = stores.runs, WholeMoments(stores.cluster, driver)
            await self._prepare(stores)
            controller = self._controller = self._new_controller(stores.runs, moments)
            loops = asyncio.get_running_loop().create_task(controller.run())
            try:
                await self._drive(loops, moments)
            finally:
                loops.cancel()
                with suppress(asyncio.CancelledError):
                    await loops
        waiting: dict[str, str] = (
            {}
            if controller.latest is None
            else {hold.gang: hold.reason.value for hold in controller.latest[1].hold}
        )
        timing = Timing(time.perf_counter() - began, self._policy.spent_s, self._policy.turns)
        return report_of(
            self._name, self._workload, self._record, waiting=waiting, refused=self._refused, timing=timing
        )

    async def _prepare(self, stores: Stores) -> None:
        await stores.prepare(self._tree, self._reservations)
        shares = self._record.shares
        seen: dict[object, tuple[str | None, Amounts]] = {}
        for index, one in enumerate(self._workload.runs):
            at = self._workload.begin + timedelta(seconds=one.at_s)
            run_id = new_run_id(at, index.to_bytes(7, "big")[::-1])
            spec = self._played(one.spec)
            shape = (spec.gang_roles(), spec.topology)
            if shape not in seen:
                gang = Gang(GangId(""), shape[0], at, topology=spec.topology)
                seen[shape] = never_fits(gang, self._cluster.nodes), shares.demand_of(gang)
            why, demand = seen[shape]
            if why is not None:
                self._refused.append(TooLarge(self._workload.place(one) or f"run {index + 1}", why))
                continue
            shares.expect(spec.queue or self._tree.default, demand, one.duration_s)
            self._works[run_id] = Work(timedelta(seconds=one.duration_s), spec.size)
            self._to_come += 1
            self._agenda.at(at, self._submission(NewRun(run_id, one.user, spec)))
        shares.begin()
        for node in self._cluster.nodes if self._settings.mtbf_s else ():
            self._plan_loss(node.id, self._workload.begin)

    def _played(self, spec: RunSpec) -> RunSpec:
        limit_s = spec.time_limit_s if self._settings.limits else None
        queue = spec.queue or self._tree.default
        priority = self._tree.queues[queue].default_priority if spec.priority is None else spec.priority
        return replace(spec, queue=queue, priority=priority, time_limit_s=limit_s, max_attempts=MOST_ATTEMPTS)

    def _new_controller(self, runs: RunStore, cluster: Any) -> Controller:
        return Controller(
            cluster=cluster,
            runs=runs,
            engine=self._engine,
            policy=self._policy,
            clock=self._clock,
            composer=Composer(runs, server_url="", sign=lambda _: ""),
            observe_every=timedelta(seconds=self._settings.observe_every_s),
            holder="simulator",
            lease=FOR_EVER,
            preempt_grace=timedelta(seconds=max(self._settings.costs.save_s, PREEMPT_GRACE_S)),
            holds_every=None,
        )

    # -- time
    # -------------------------------------------------------------------------------------------------------

    async def _drive(self, loops: asyncio.Task[None], moments: WholeMoments) -> None:
        until = self._until()
        while True:
            moments.end()
            await self._stillness.wait()
            moments.begin()
            self._policy.check()
            if loops.done():
                loops.result()
            if not self._to_come and self._record.ended == len(self._record.stories):
                return
            coming = min(
                (at for at in (self._agenda.next_at(), self._clock.next_at()) if at is not None), default=None
            )
            if coming is None or coming > until or self._stuck(coming):
                if coming is not None and coming > until:
                    self._record.pass_to(until)
                return
            await self._move_to(coming)
            while (happening := self._agenda.due(self._clock.now())) is not None:
                await happening()

    def _stuck(self, coming: datetime) -> bool:
        """Nobody comes, nobody runs, and whoever waits has waited long enough for machines, reservations or a
        change of mind."""
        return not self._to_come and not self._record.running and coming > self._record.changed_at + PATIENCE

    def _until(self) -> datetime:
        return self._workload.begin + (
            FOR_EVER if self._settings.until_s is None else timedelta(seconds=self._settings.until_s)
        )

    async def _move_to(self, when: datetime) -> None:
        if self._settings.speed and when > self._clock.now():
            await asyncio.sleep((when - self._clock.now()).total_seconds() / self._settings.speed)
        if when > self._record.now:
            self._record.pass_to(when)
        self._clock.move_to(when)
        self._show()

    def _show(self) -> None:
        if (
            self._settings.watch is None
            or time.monotonic() - self._watched_at < self._settings.watch_every.total_seconds()
        ):
            return
        self._watched_at = time.monotonic()
        record, ledger = self._record, self._ledger
        used = (
            ledger.gpu_used / ledger.gpu_total
            if ledger.gpu_total
            else ledger.cpu_used / max(ledger.cpu_total, 1)
        )
        runs = len(self._works)
        self._settings.watch(
            Progress(self._name, self._clock.now(), record.ended, runs, record.running, record.waiting, used)
        )

    # -- what happens
    # -----------------------------------------------------------------------------------------------

    def _submission(self, new: NewRun) -> Happening:
        async def submit() -> None:
            (made,) = await self._runs.create([new], now=self._clock.now())
            self._to_come -= 1
            self._record.submitted(
                made.id,
                new.spec.as_gang(made.id, new.user, submitted_at=made.submitted_at),
                self._works[made.id].takes,
            )
            self._controller.submitted([made])

        return submit

    def _plan_loss(self, node: NodeId, after: datetime) -> None:
        at = after + timedelta(seconds=self._chance.expovariate(1 / self._settings.mtbf_s))

        async def lose() -> None:
            self._record.node_losses += 1
            self._losses += 1
            if self._losses > MOST_LOSSES * len(self._cluster.nodes):
                raise SpecError(
                    f"--mtbf: machines were lost {self._losses} times one after the other, and no run "
                    "came any further meanwhile",
                    hints=(
                        "let runs save what they did: --checkpoint-every 10m",
                        "or let machines live longer",
                    ),
                )
            self._ledger.set_ready(node, False)
            self._agenda.at(self._clock.now() + timedelta(seconds=self._settings.repair_s), repair)
            await self._engine.lose_node(node)

        async def repair() -> None:
            self._ledger.set_ready(node, True)
            await self._engine.return_node(node)
            self._plan_loss(node, self._clock.now())

        self._agenda.at(at, lose)

    def _planned(self, _snapshot: Snapshot, plan: Plan) -> None:
        self._record.planned(plan)

    async def status(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        await self._controller.hear(attempt, status)

    async def checkpoint(self, checkpoint: Checkpoint) -> None:
        self._losses = 0
        await self._runs.record_checkpoint(checkpoint)

    async def nodes_changed(self) -> None:
        await self._controller.look()

    def started(self, live: Live) -> None:
        self._record.started(live)

    def ended(self, live: Live, kept: timedelta) -> None:
        if kept > timedelta(0):
            self._losses = 0
        self._record.stopped(live, kept)
