"""The store as a dozen plain rules over dictionaries: what the stateful test compares the real one with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ReplicaPhase, ReplicaStatus, summarise
from hopyard.domain.ids import AttemptId, RunId, attempt_id

# CPUs and GPUs of each node.
NODES: Mapping[str, tuple[int, int]] = {"n1": (6, 2), "n2": (2, 0)}
Places = Sequence[tuple[str, tuple[int, ...]]]


@dataclass
class ModelAttempt:
    id: AttemptId
    places: Places
    phase: str = "starting"
    replicas: dict[int, ReplicaStatus] = field(default_factory=dict)
    exit: tuple[str, int] | None = None  # kind and code

    @property
    def live(self) -> bool:
        return self.phase in ("starting", "running", "stopping")


@dataclass
class ModelRun:
    id: RunId
    size: int
    gpus: int  # of each replica
    max_attempts: int
    submitted_at: datetime
    phase: str = "queued"
    stop_requested: bool = False
    attempts: list[ModelAttempt] = field(default_factory=list)
    position: int | None = None
    exit: tuple[str, int] | None = None

    @property
    def final(self) -> bool:
        return self.phase in ("succeeded", "failed", "cancelled")


@dataclass
class Model:
    runs: dict[RunId, ModelRun] = field(default_factory=dict)

    def live(self) -> Iterator[tuple[ModelRun, ModelAttempt]]:
        for run in self.runs.values():
            if run.attempts and run.attempts[-1].live:
                yield run, run.attempts[-1]

    def fits(self, run: ModelRun, places: Places) -> bool:
        """Each replica takes one CPU and `gpus` GPUs that nobody holds."""
        held = [place for _, attempt in self.live() for place in attempt.places] + list(places)
        for node, (cpus, gpus) in NODES.items():
            here = [cards for name, cards in held if name == node]
            cards = [card for some in here for card in some]
            if len(here) > cpus or len(set(cards)) < len(cards) or any(card >= gpus for card in cards):
                return False
        return len(places) == run.size and all(len(cards) == run.gpus for _, cards in places)

    def somewhere(self, run: ModelRun) -> Places | None:
        """A place for it, should there be one for its replicas side by side."""
        for node in NODES:
            for first in (0, 1):
                places = [(node, (first + rank,) if run.gpus else ()) for rank in range(run.size)]
                if self.fits(run, places):
                    return places
        return None

    def in_use(self) -> list[int]:
        """The GPUs of n1, the one node that has any, that somebody holds."""
        return sorted(card for _, attempt in self.live() for _, cards in attempt.places for card in cards)

    def exited(self) -> list[tuple[ModelRun, ReplicaStatus]]:
        """Replicas that have exited while their gang is not over."""
        return [(run, told) for run, attempt in self.live() for told in attempt.replicas.values() if told.exit is not None]

    def apply(self, wanted: Sequence[tuple[RunId, Places]]) -> list[RunId]:
        applied = []
        for id_, places in wanted:
            run = self.runs.get(id_)
            if run is None or run.phase != "queued" or not self.fits(run, places):
                continue
            run.attempts.append(ModelAttempt(attempt_id(id_, len(run.attempts) + 1), places))
            run.phase, run.position = "starting", None
            applied.append(id_)
        return applied

    def say(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        for run, known in self.live():
            if known.id != attempt or not 0 <= status.rank < run.size:
                continue
            old = known.replicas.get(status.rank)
            order = list(ReplicaPhase)
            if old is None or (old.phase is not ReplicaPhase.EXITED and order.index(old.phase) <= order.index(status.phase)):
                known.replicas[status.rank] = status
            told, how = summarise(AttemptStatus(attempt, tuple(known.replicas.values())), size=run.size)
            if not told.live:
                self._end(run, told, how)
            elif told is AttemptPhase.STOPPING or (told is AttemptPhase.RUNNING and known.phase == "starting"):
                known.phase = run.phase = told.value

    def observe(self, seen: Sequence[AttemptId]) -> None:
        for run, attempt in list(self.live()):
            if attempt.id not in seen and attempt.phase != "starting":
                self._end(run, AttemptPhase.LOST)

    def fail_launch(self, attempt: AttemptId) -> None:
        for run, known in list(self.live()):
            if known.id == attempt:
                self._end(run, AttemptPhase.LOST)

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
        exit = (how.kind.value, how.code) if how is not None else ("lost", 1)
        run.attempts[-1].phase, run.attempts[-1].exit = phase.value, exit
        if phase in (AttemptPhase.SUCCEEDED, AttemptPhase.FAILED):
            run.phase = phase.value
        elif run.stop_requested:
            run.phase = "cancelled"
        else:
            run.phase = "queued" if len(run.attempts) < run.max_attempts else "failed"
        run.exit = exit if run.final else None
