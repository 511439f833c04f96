"""What the coordinator says, as messages to workers, and the units that are under way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from hopyard.domain.ids import TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import CancelUnit, EvaluateState, Instruction, TrainHop
from hopyard.studies.hopper.crew import Crew
from hopyard.studies.hopper.training import Training
from hopyard.studies.hopper.units import Names, Unit
from hopyard.studies.hopper.whereabouts import Whereabouts
from hopyard.studies.messages import Cancel, Evaluate, Member, Prefetch, Train


class Orders:
    """training: states are evaluated on the training data, since there is no other."""

    def __init__(
        self, coordinator: MopCoordinator, crew: Crew, states: Whereabouts, names: Names, *, training: bool
    ) -> None:
        self._coordinator, self._crew, self._states, self._names, self._training = (
            coordinator,
            crew,
            states,
            names,
            training,
        )
        self.units: dict[int, Unit] = {}
        self._hinted: dict[WorkerId, str] = {}
        self._changed = False

    def give(self, said: Iterable[Instruction], trials: Mapping[TrialId, Training], seed: int) -> None:
        for one in said:
            match one:
                case TrainHop():
                    self._train(one, trials[one.trial], seed)
                case EvaluateState():
                    self._evaluate(one, trials[one.trial], seed)
                case CancelUnit(number):
                    self._cancel(number)

    def _train(self, hop: TrainHop, training: Training, seed: int) -> None:
        self.units[hop.hop] = Unit(
            hop.hop, hop.trial, hop.epoch, hop.partitions, hop.workers, hop.start_from, True, time.monotonic()
        )  # fmt: skip
        self._changed = True
        workers = [found for one in hop.workers if (found := self._crew.find(one)) is not None]
        addresses = {worker.id: worker.hello.address for worker in workers}
        members = tuple(
            Member(one, partition, addresses.get(one, ""))
            for one, partition in zip(hop.workers, hop.partitions, strict=True)
        )
        for worker in workers:
            sources = self._states.sources(hop.start_from, worker)
            self._crew.send(
                worker,
                Train(
                    self._names.of(hop.hop),
                    hop.trial,
                    hop.epoch,
                    training.params,
                    training.budget,
                    seed,
                    hop.start_from,
                    members,
                    sources,
                ),
            )

    def _evaluate(self, one: EvaluateState, training: Training, seed: int) -> None:
        self.units[one.unit] = Unit(
            one.unit,
            one.trial,
            one.epoch,
            (one.partition,),
            (one.worker,),
            one.checkpoint,
            False,
            time.monotonic(),
        )
        self._changed = True
        worker = self._crew.find(one.worker)
        if worker is not None:
            sources = self._states.sources(one.checkpoint, worker)
            self._crew.send(
                worker,
                Evaluate(
                    self._names.of(one.unit),
                    one.trial,
                    one.epoch,
                    training.params,
                    training.budget,
                    seed,
                    one.checkpoint,
                    one.partition,
                    self._training,
                    sources,
                ),
            )

    def _cancel(self, number: int) -> None:
        unit = self.units.pop(number, None)
        for one in unit.workers if unit is not None else ():
            worker = self._crew.find(one)
            if worker is not None:
                self._crew.send(worker, Cancel(self._names.of(number)))

    def hint(self) -> None:
        """Tell busy workers what they will be asked for next, where that changed."""
        if not self._changed:
            return
        self._changed = False
        now = time.monotonic()
        for hint in self._coordinator.hints(
            {number: now - unit.begun_at for number, unit in self.units.items()}
        ):
            worker = self._crew.find(hint.worker)
            if worker is not None and self._hinted.get(hint.worker) != hint.checkpoint:
                self._hinted[hint.worker] = hint.checkpoint
                self._crew.send(
                    worker, Prefetch(hint.checkpoint, self._states.sources(hint.checkpoint, worker))
                )
