"""A simple model of the store over dictionaries, with which the stateful test compares the real one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hopyard.domain.attempt import (
    AttemptPhase,
    AttemptStatus,
    Exit,
    ExitKind,
    ReplicaPhase,
    ReplicaStatus,
    gang_state,
)
from hopyard.domain.ids import AttemptId, RunId, attempt_id

# CPUs and GPUs of each node.
NODES: Mapping[str, tuple[int, int]] = {"n1": (6, 2), "n2": (2, 0)}
Place = tuple[str, tuple[int, ...], int]  # a node, its GPUs, thousandths of each GPU
Places = Sequence[Place]


@dataclass
class ModelAttempt:
    id: AttemptId
    places: Places
    phase: str = "starting"
    replicas: dict[int, ReplicaStatus] = field(default_factory=dict)
    exit: tuple[str, int] | None = None  # kind and code
    preempted: bool = False
    saved_at: datetime | None = None

    @property
    def is_live(self) -> bool:
        return self.phase in ("starting", "running", "stopping")


@dataclass
class ModelRun:
    id: RunId
    size: int
    gpu_milli: int  # of each replica: 0, a share of a GPU, or 1000
    max_attempts: int
    submitted_at: datetime
    preemptible: bool = True
    phase: str = "queued"
    stop_requested: bool = False
    attempts: list[ModelAttempt] = field(default_factory=list)
    position: int | None = None
    exit: tuple[str, int] | None = None
    lost: int = 0
    preemptions: int = 0
    priority: int | None = None
    held_by: str | None = None
    changed: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether a policy sees the run."""
        return self.phase == "queued" and self.held_by is None

    @property
    def is_final(self) -> bool:
        return self.phase in ("succeeded", "failed", "cancelled")


@dataclass
class Model:
    runs: dict[RunId, ModelRun] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set)

    def live(self) -> Iterator[tuple[ModelRun, ModelAttempt]]:
        for run in self.runs.values():
            if run.attempts and run.attempts[-1].is_live:
                yield run, run.attempts[-1]

    def fits(self, run: ModelRun, places: Places) -> bool:
        """Whether the run fits: each replica needs a CPU and its GPU share; no GPU is overcommitted."""
        if len(places) != run.size or any(node in self.cordoned for node, _, _ in places):
            return False
        if any(
            len(cards) != bool(run.gpu_milli) or (cards and milli != run.gpu_milli)
            for _, cards, milli in places
        ):
            return False
        allocated = [place for _, attempt in self.live() for place in attempt.places] + list(places)
        cpus = Counter(node for node, _, _ in allocated)
        cards = Counter[tuple[str, int]]()
        for node, indices, milli in allocated:
            cards.update({(node, card): milli for card in indices})
        if any(cpus[node] > NODES[node][0] for node in cpus):
            return False
        return all(card < NODES[node][1] and used <= 1000 for (node, card), used in cards.items())

    def find_places(self, run: ModelRun) -> Places | None:
        """Returns places with the replicas on consecutive GPUs, or all on one GPU; None if none fit."""
        for node in NODES:
            for first, step in ((0, 1), (1, 1), (0, 0), (1, 0)):
                places = [
                    (node, (first + step * rank,) if run.gpu_milli else (), run.gpu_milli or 1000)
                    for rank in range(run.size)
                ]
                if self.fits(run, places):
                    return places
        return None

    def used_gpus(self) -> list[int]:
        """Returns the GPUs of n1 (the only node with GPUs) that have an allocation."""
        return sorted(
            {card for _, attempt in self.live() for _, cards, _ in attempt.places for card in cards}
        )

    def exited_replicas(self) -> list[tuple[ModelRun, ReplicaStatus]]:
        """Returns the exited replicas of live gangs."""
        return [
            (run, status)
            for run, attempt in self.live()
            for status in attempt.replicas.values()
            if status.exit is not None
        ]

    def apply(self, placements: Sequence[tuple[RunId, Places]]) -> list[RunId]:
        applied = []
        for id_, places in placements:
            run = self.runs.get(id_)
            if run is None or not run.is_pending or not self.fits(run, places):
                continue
            run.attempts.append(ModelAttempt(attempt_id(id_, len(run.attempts) + 1), places))
            run.phase, run.position = "starting", None
            applied.append(id_)
        return applied

    def preempt(self, attempt: AttemptId) -> bool:
        """Requests a preemption and returns whether that was possible."""
        for run, live in self.live():
            if live.id == attempt and live.phase != "stopping" and run.preemptible:
                live.preempted = True
                run.phase = live.phase = "stopping"
                return True
        return False

    def save(self, attempt: AttemptId, at: datetime) -> None:
        for run, live in self.live():
            if live.id == attempt:
                live.saved_at = at
                run.lost = 0  # each checkpoint is progress

    def report_status(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        for run, live in self.live():
            if live.id != attempt or not 0 <= status.rank < run.size:
                continue
            old = live.replicas.get(status.rank)
            order = list(ReplicaPhase)
            if old is None or (
                old.phase is not ReplicaPhase.EXITED and order.index(old.phase) <= order.index(status.phase)
            ):
                live.replicas[status.rank] = status
            phase, exit = gang_state(AttemptStatus(attempt, tuple(live.replicas.values())), size=run.size)
            if not phase.is_live:
                self._end(run, phase, exit)
            elif phase is AttemptPhase.STOPPING or (
                phase is AttemptPhase.RUNNING and live.phase == "starting"
            ):
                live.phase = run.phase = phase.value

    def observe(self, observed: Sequence[AttemptId]) -> None:
        for run, attempt in list(self.live()):
            if attempt.id not in observed and attempt.phase != "starting":
                self._end(run, AttemptPhase.LOST)

    def fail_launch(self, attempt: AttemptId, kind: ExitKind) -> None:
        for run, live in list(self.live()):
            if live.id == attempt and kind is ExitKind.LOST:
                self._end(run, AttemptPhase.LOST)
            elif live.id == attempt:
                self._end(
                    run, AttemptPhase.FAILED, Exit(kind, 125 if kind is ExitKind.PREPARE_FAILED else 1, "no")
                )

    def change(self, id_: RunId, priority: int | None, held_by: str | None) -> bool:
        """Changes a run and returns whether that was possible."""
        run = self.runs[id_]
        if (priority, held_by) == (run.priority, run.held_by if run.phase == "queued" else None):
            return True
        if run.phase != "queued":
            return False
        run.priority, run.held_by, run.changed, run.position = priority, held_by, True, None
        return True

    def stop(self, id_: RunId) -> None:
        run = self.runs[id_]
        if run.is_final:
            return
        run.stop_requested = True
        if run.phase == "queued":
            run.phase, run.position, run.exit = "cancelled", None, ("stopped", 130)
        else:
            run.phase = run.attempts[-1].phase = "stopping"

    def _end(self, run: ModelRun, phase: AttemptPhase, gang_exit: Exit | None = None) -> None:
        attempt = run.attempts[-1]
        exit = (gang_exit.kind.value, gang_exit.code) if gang_exit is not None else ("lost", 1)
        preempted_exit = next(
            (
                status.exit
                for _, status in sorted(attempt.replicas.items())
                if status.exit and status.exit.kind is ExitKind.PREEMPTED
            ),
            None,
        )
        if (
            attempt.preempted
            and phase is AttemptPhase.FAILED
            and exit[0] in ("exit-code", "signal", "peer-failed")
            and preempted_exit is not None
        ):
            phase, exit = AttemptPhase.STOPPED, (preempted_exit.kind.value, preempted_exit.code)
        attempt.phase, attempt.exit = phase.value, exit
        if exit[0] == "node-fault" and phase is AttemptPhase.FAILED:
            run.phase = "cancelled" if run.stop_requested else "queued"
        elif phase in (AttemptPhase.SUCCEEDED, AttemptPhase.FAILED):
            run.phase = phase.value
        elif run.stop_requested:
            run.phase = "cancelled"
        elif attempt.preempted or exit[0] == "preempted":
            run.phase = "queued"
            run.preemptions += 1
        else:
            run.phase = "queued" if run.lost + 1 < run.max_attempts else "failed"
            run.lost += 1
        run.exit = exit if run.is_final else None
