"""Sends the coordinator's instructions to workers, and tracks the active units."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import CancelUnit, EvaluateState, Instruction, TrainHop
from hopyard.mop_runtime.driver.active_trial import ActiveTrial
from hopyard.mop_runtime.driver.state_locations import StateLocations
from hopyard.mop_runtime.driver.units import DispatchedUnit, UnitNames
from hopyard.mop_runtime.driver.worker_registry import WorkerRegistry
from hopyard.mop_runtime.messages import (
    Cancel,
    EvaluateUnit,
    GatheredOutputs,
    MeasureState,
    PrefetchState,
    TrainUnit,
    UnitAssignment,
)


class UnitDispatcher:
    """evaluate_on_training_data: evaluate states on the training data, because there is no validation data.
    measuring: as in `MopCoordinator`. gathered_by_state: the names of what evaluations gathered, by state and
    partition."""

    def __init__(
        self,
        coordinator: MopCoordinator,
        workers: WorkerRegistry,
        state_locations: StateLocations,
        unit_names: UnitNames,
        *,
        evaluate_on_training_data: bool,
        measuring: PartitionId,
        gathered_by_state: Mapping[str, Mapping[PartitionId, str]],
    ) -> None:
        self._coordinator = coordinator
        self._workers = workers
        self._state_locations = state_locations
        self._unit_names = unit_names
        self._evaluate_on_training_data = evaluate_on_training_data
        self._measuring, self._gathered_by_state = measuring, gathered_by_state
        self.units: dict[int, DispatchedUnit] = {}
        self._sent_hints: dict[WorkerId, str] = {}
        self._hints_stale = False

    def dispatch(
        self, instructions: Iterable[Instruction], trials: Mapping[TrialId, ActiveTrial], seed: int
    ) -> None:
        for instruction in instructions:
            match instruction:
                case TrainHop():
                    self._train(instruction, trials[instruction.trial], seed)
                case EvaluateState() if instruction.partition == self._measuring:
                    self._measure(instruction, trials[instruction.trial], seed)
                case EvaluateState():
                    self._evaluate(instruction, trials[instruction.trial], seed)
                case CancelUnit(number):
                    self._cancel(number)

    def _train(self, hop: TrainHop, training: ActiveTrial, seed: int) -> None:
        self.units[hop.hop] = DispatchedUnit(
            hop.hop, hop.trial, hop.epoch, hop.partitions, hop.workers, hop.start_from, True, time.monotonic()
        )  # fmt: skip
        self._hints_stale = True
        workers = [
            registered for member in hop.workers if (registered := self._workers.find(member)) is not None
        ]
        addresses = {worker.id: worker.hello.address for worker in workers}
        members = tuple(
            UnitAssignment(member, partition, addresses.get(member, ""))
            for member, partition in zip(hop.workers, hop.partitions, strict=True)
        )
        for worker in workers:
            sources = self._state_locations.sources(hop.start_from, worker)
            self._workers.send(
                worker,
                TrainUnit(
                    self._unit_names.name_of(hop.hop),
                    hop.trial,
                    hop.epoch,
                    training.params,
                    training.epochs,
                    seed,
                    hop.start_from,
                    members,
                    sources,
                ),
            )

    def _evaluate(self, evaluation: EvaluateState, training: ActiveTrial, seed: int) -> None:
        self.units[evaluation.unit] = DispatchedUnit(
            evaluation.unit,
            evaluation.trial,
            evaluation.epoch,
            (evaluation.partition,),
            (evaluation.worker,),
            evaluation.checkpoint,
            False,
            time.monotonic(),
        )
        self._hints_stale = True
        worker = self._workers.find(evaluation.worker)
        if worker is not None:
            sources = self._state_locations.sources(evaluation.checkpoint, worker)
            self._workers.send(
                worker,
                EvaluateUnit(
                    self._unit_names.name_of(evaluation.unit),
                    evaluation.trial,
                    evaluation.epoch,
                    training.params,
                    training.epochs,
                    seed,
                    evaluation.checkpoint,
                    evaluation.partition,
                    self._evaluate_on_training_data,
                    sources,
                ),
            )

    def _measure(self, evaluation: EvaluateState, training: ActiveTrial, seed: int) -> None:
        state = evaluation.checkpoint
        self.units[evaluation.unit] = DispatchedUnit(
            evaluation.unit,
            evaluation.trial,
            evaluation.epoch,
            (),
            (evaluation.worker,),
            state,
            False,
            time.monotonic(),
            is_measurement=True,
        )
        worker = self._workers.find(evaluation.worker)
        if worker is not None:
            outputs = tuple(
                GatheredOutputs(name, self._state_locations.sources(name, worker))
                for _, name in sorted(self._gathered_by_state[state].items())
            )
            self._workers.send(
                worker,
                MeasureState(
                    self._unit_names.name_of(evaluation.unit),
                    evaluation.trial,
                    evaluation.epoch,
                    training.params,
                    training.epochs,
                    seed,
                    state,
                    outputs,
                ),
            )

    def _cancel(self, number: int) -> None:
        unit = self.units.pop(number, None)
        for member in unit.workers if unit is not None else ():
            worker = self._workers.find(member)
            if worker is not None:
                self._workers.send(worker, Cancel(self._unit_names.name_of(number)))

    def send_prefetch_hints(self) -> None:
        """Sends busy workers the state that they will need next, if it has changed."""
        if not self._hints_stale:
            return
        self._hints_stale = False
        now = time.monotonic()
        for hint in self._coordinator.hints(
            {number: now - unit.started_at for number, unit in self.units.items()}
        ):
            worker = self._workers.find(hint.worker)
            if worker is not None and self._sent_hints.get(hint.worker) != hint.checkpoint:
                self._sent_hints[hint.worker] = hint.checkpoint
                self._workers.send(
                    worker,
                    PrefetchState(hint.checkpoint, self._state_locations.sources(hint.checkpoint, worker)),
                )
