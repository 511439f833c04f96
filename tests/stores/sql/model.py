"""The store as a dozen plain rules over dictionaries: what the stateful test compares the real one with."""

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
Place = tuple[str, tuple[int, ...], int]  # a node, its GPUs, thousandths of each
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
    def live(self) -> bool:
        return self.phase in ("starting", "running", "stopping")


@dataclass
class ModelRun:
    id: RunId
    size: int
    gpu_milli: int  # of each replica: none, a share of one, or a whole one
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
    def waits(self) -> bool:
        """Whether a policy sees it."""
        return self.phase == "queued" and self.held_by is None

    @property
    def final(self) -> bool:
        return self.phase in ("succeeded", "failed", "cancelled")


@dataclass
class Model:
    runs: dict[RunId, ModelRun] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set)

    def live(self) -> Iterator[tuple[ModelRun, ModelAttempt]]:
        for run in self.runs.values():
            if run.attempts and run.attempts[-1].live:
                yield run, run.attempts[-1]

    def fits(self, run: ModelRun, places: Places) -> bool:
        """Each replica takes one CPU, and its share of a GPU on which no more than a whole one is given
        out."""
        if len(places) != run.size or any(node in self.cordoned for node, _, _ in places):
            return False
        if any(
            len(cards) != bool(run.gpu_milli) or (cards and milli != run.gpu_milli)
            for _, cards, milli in places
        ):
            return False
        held = [place for _, attempt in self.live() for place in attempt.places] + list(places)
        cpus = Counter(node for node, _, _ in held)
        cards = Counter[tuple[str, int]]()
        for node, some, milli in held:
            cards.update({(node, card): milli for card in some})
        if any(cpus[node] > NODES[node][0] for node in cpus):
            return False
        return all(card < NODES[node][1] and given <= 1000 for (node, card), given in cards.items())

    def somewhere(self, run: ModelRun) -> Places | None:
        """A place for it, should there be one for its replicas side by side, or all on one GPU."""
        for node in NODES:
            for first, step in ((0, 1), (1, 1), (0, 0), (1, 0)):
                places = [
                    (node, (first + step * rank,) if run.gpu_milli else (), run.gpu_milli or 1000)
                    for rank in range(run.size)
                ]
                if self.fits(run, places):
                    return places
        return None

    def in_use(self) -> list[int]:
        """The GPUs of n1, the one node that has any, of which somebody holds some."""
        return sorted(
            {card for _, attempt in self.live() for _, cards, _ in attempt.places for card in cards}
        )

    def exited(self) -> list[tuple[ModelRun, ReplicaStatus]]:
        """Replicas that have exited while their gang is not over."""
        return [
            (run, told)
            for run, attempt in self.live()
            for told in attempt.replicas.values()
            if told.exit is not None
        ]

    def apply(self, wanted: Sequence[tuple[RunId, Places]]) -> list[RunId]:
        applied = []
        for id_, places in wanted:
            run = self.runs.get(id_)
            if run is None or not run.waits or not self.fits(run, places):
                continue
            run.attempts.append(ModelAttempt(attempt_id(id_, len(run.attempts) + 1), places))
            run.phase, run.position = "starting", None
            applied.append(id_)
        return applied

    def preempt(self, attempt: AttemptId) -> bool:
        """Whether it is asked to make room."""
        for run, known in self.live():
            if known.id == attempt and known.phase != "stopping" and run.preemptible:
                known.preempted = True
                run.phase = known.phase = "stopping"
                return True
        return False

    def save(self, attempt: AttemptId, at: datetime) -> None:
        for run, known in self.live():
            if known.id == attempt:
                known.saved_at = at
                run.lost = 0  # each is further than the one before

    def say(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        for run, known in self.live():
            if known.id != attempt or not 0 <= status.rank < run.size:
                continue
            old = known.replicas.get(status.rank)
            order = list(ReplicaPhase)
            if old is None or (
                old.phase is not ReplicaPhase.EXITED and order.index(old.phase) <= order.index(status.phase)
            ):
                known.replicas[status.rank] = status
            told, how = gang_state(AttemptStatus(attempt, tuple(known.replicas.values())), size=run.size)
            if not told.is_live:
                self._end(run, told, how)
            elif told is AttemptPhase.STOPPING or (
                told is AttemptPhase.RUNNING and known.phase == "starting"
            ):
                known.phase = run.phase = told.value

    def observe(self, seen: Sequence[AttemptId]) -> None:
        for run, attempt in list(self.live()):
            if attempt.id not in seen and attempt.phase != "starting":
                self._end(run, AttemptPhase.LOST)

    def fail_launch(self, attempt: AttemptId, kind: ExitKind) -> None:
        for run, known in list(self.live()):
            if known.id == attempt and kind is ExitKind.LOST:
                self._end(run, AttemptPhase.LOST)
            elif known.id == attempt:
                self._end(
                    run, AttemptPhase.FAILED, Exit(kind, 125 if kind is ExitKind.PREPARE_FAILED else 1, "no")
                )

    def change(self, id_: RunId, priority: int | None, held_by: str | None) -> bool:
        """Whether it can be changed so."""
        run = self.runs[id_]
        if (priority, held_by) == (run.priority, run.held_by if run.phase == "queued" else None):
            return True
        if run.phase != "queued":
            return False
        run.priority, run.held_by, run.changed, run.position = priority, held_by, True, None
        return True

    def stop(self, id_: RunId) -> None:
        run = self.runs[id_]
        if run.final:
            return
        run.stop_requested = True
        if run.phase == "queued":
            run.phase, run.position, run.exit = "cancelled", None, ("stopped", 130)
        else:
            run.phase = run.attempts[-1].phase = "stopping"

    def _end(self, run: ModelRun, phase: AttemptPhase, how: Exit | None = None) -> None:
        attempt = run.attempts[-1]
        exit = (how.kind.value, how.code) if how is not None else ("lost", 1)
        left = next(
            (
                told.exit
                for _, told in sorted(attempt.replicas.items())
                if told.exit and told.exit.kind is ExitKind.PREEMPTED
            ),
            None,
        )
        if (
            attempt.preempted
            and phase is AttemptPhase.FAILED
            and exit[0] in ("exit-code", "signal", "peer-failed")
            and left is not None
        ):
            phase, exit = AttemptPhase.STOPPED, (left.kind.value, left.code)
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
        run.exit = exit if run.final else None
