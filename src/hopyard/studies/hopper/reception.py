"""What workers say, and what becomes of it: written down, told to the coordinator, acknowledged."""

from __future__ import annotations

import time

from hopyard.domain.ids import WorkerId
from hopyard.errors import SpecError
from hopyard.mop.events import EvaluationFinished, HopFinished, UnitFailed, WorkerJoined, WorkerLost
from hopyard.studies.hopper.adopting import Adopting
from hopyard.studies.hopper.crew import Crew, Worker
from hopyard.studies.hopper.ledger import Ledger
from hopyard.studies.hopper.orders import Orders
from hopyard.studies.hopper.stragglers import Stragglers
from hopyard.studies.hopper.trials import Trials
from hopyard.studies.hopper.units import Names, Unit
from hopyard.studies.hopper.whereabouts import Whereabouts
from hopyard.studies.link.hub import HubEvent, Lent, Wanted
from hopyard.studies.messages import (
    Acknowledge,
    Beat,
    Doing,
    End,
    Evaluated,
    Failed,
    Finished,
    Hello,
    Named,
    Ready,
)

_BREAKS = 5  # groups one after another, of which none came to an end: their members cannot reach each other
_LOSSES = 3  # times that the worker of the same unit may be lost before the trial is taken for the cause
_LACKS = 5  # times that the state which the same unit begins with may be lacking before the trial is given up


class Reception:
    """validates: whether there are partitions for that; else states are evaluated on the training data.
    began: whether trials are trained yet. leaving: what is saved is decided: hops that end now are done
    again. first_at: `time.monotonic()` of the first hello. together: whether all workers' code can train in
    groups."""

    def __init__(
        self,
        ledger: Ledger,
        crew: Crew,
        states: Whereabouts,
        orders: Orders,
        trials: Trials,
        adopting: Adopting,
        stragglers: Stragglers,
        names: Names,
        *,
        validates: bool,
    ) -> None:
        self._ledger, self._crew, self._states, self._orders, self._trials = (
            ledger,
            crew,
            states,
            orders,
            trials,
        )
        self._adopting, self._stragglers, self._names, self._validates = (
            adopting,
            stragglers,
            names,
            validates,
        )
        self._acks: dict[WorkerId, tuple[list[str], list[str]]] = {}
        self._refused: dict[WorkerId, Failed] = {}  # workers that could not open what they were told to
        self.began, self.together, self.leaving = False, True, False
        self._breaks = 0
        self.first_at: float | None = None

    def take(self, event: HubEvent) -> None:
        """Raises SpecError where no worker can open the data or the user's code."""
        if isinstance(event, (Wanted, Lent)):
            self._states.hear(event)
            return
        said = self._crew.take(event)
        self.lose_lost()  # also one in whose place another process of its name came, before that one is heard
        if said is None:
            return
        worker, message = said
        match message:
            case Hello():
                self._greet(worker)
            case Ready():
                self._refused.pop(worker.id, None)
                self.together = self.together and message.together
                self.join(worker)
                self._judge_refusals()
            case Finished() if self.leaving:
                self._acknowledge(worker, unit=message.unit)
            case Finished():
                self._finished(worker, message)
            case Evaluated():
                self._evaluated(worker, message)
            case Named():
                if message.state not in self._ledger.book.digests:
                    self._ledger.write("named", unit=message.unit, state=message.state, digest=message.digest)
                self._acknowledge(worker, named=message.unit)
            case Failed():
                self._failed(worker, message)
            case Beat():
                if not worker.settled:
                    self._settle(worker)

    # -- who is there
    # -------------------------------------------------------------------------------------------------

    def _greet(self, worker: Worker) -> None:
        self.first_at = self.first_at or time.monotonic()
        self.together = self.together and worker.hello.together
        for state in worker.hello.states:
            self._states.lies(state, worker.hello.shelf)
        for doing in worker.hello.doing:
            self._find_out(worker, doing)
        self.join(worker)

    def _find_out(self, worker: Worker, doing: Doing) -> None:
        """Whether what it does is still wanted."""
        unit = self._unit(worker, doing.unit, training=doing.training)
        if unit is None and self._names.number(doing.unit) is None and not self.began:
            self._adopting.add(doing, worker.id)
        elif unit is None:
            self._crew.cancel(worker.id, doing.unit)

    def _settle(self, worker: Worker) -> None:
        """The first beat after its hello: what it has to say again has come. A unit that it does not do and
        has not done it never heard of; a state that nobody needs was dropped while it was away."""
        worker.settled = True
        doing = {one.unit for one in worker.hello.doing}
        for unit in list(self._orders.units.values()):
            unheard = self._names.of(unit.number) not in doing and worker.id not in unit.finished
            if worker.id in unit.workers and unheard and unit.begun_at < worker.greeted_at:
                self._repeat(unit)
        if self.began:
            self.tidy()

    def tidy(self) -> None:
        """Drop what earlier drivers left, but for what is being made."""
        self._states.drop_all_but_kept(
            {self._names.of(number) for number in self._orders.units} | self._adopting.units
        )

    def join(self, worker: Worker) -> None:
        """Whoever has something open, and nothing to do for an earlier driver, takes part."""
        if self.began and not self._adopting.keeps(worker.id) and worker.open:
            judges = worker.judges if self._validates else worker.open
            self._trials.facts.append(WorkerJoined(worker.id, worker.open, None, judges))

    def lose_lost(self) -> None:
        lost = self._crew.take_lost()
        for worker in lost:
            self._lose(worker)
        if lost:
            self._judge_refusals()

    def _lose(self, worker: Worker) -> None:
        for unit in [unit for unit in self._orders.units.values() if worker.id in unit.workers]:
            if unit.finished:  # a group, of which another member has the state
                self._hopped(unit, next(iter(unit.finished.values())))
            else:
                self._lose_unit(worker, unit)
        self._trials.facts.append(WorkerLost(worker.id))
        self._refused.pop(worker.id, None)
        for orphan in self._adopting.lose(worker.id):
            training = self._trials.find(orphan.doing.trial)
            if training is not None:
                self._trials.admit(training)
        self._trials.go_back_with_the_lost()

    def _lose_unit(self, worker: Worker, unit: Unit) -> None:
        for other in unit.workers:
            if other != worker.id:
                self._crew.cancel(other, self._names.of(unit.number))
        del self._orders.units[unit.number]
        training = self._trials.find(unit.trial)
        if training is None:
            return
        where = unit.epoch, () if unit.frozen_s else unit.partitions  # one that hangs does so wherever it is
        training.losses[where] += 1
        if training.losses[where] >= _LOSSES:
            why = f"the worker that trained it was lost {_LOSSES} times in the same unit (out of memory?)"
            if unit.frozen_s:
                why = (
                    f"the worker that trained it was ended {_LOSSES} times in epoch {unit.epoch + 1}, the "
                    f"last time after {unit.frozen_s:.0f} s on one unit: "
                    "it hangs, or needs a longer `unit_timeout`"
                )
            self._trials.fail(unit.trial, why)

    def _refuse(self, worker: Worker, said: Failed) -> None:
        """It cannot open its partitions or the user's code."""
        self._refused[worker.id] = said
        self._judge_refusals()

    def _judge_refusals(self) -> None:
        """Where nobody can begin, that is the study's error, told once: so nobody is sent away for it before
        somebody else could."""
        able = any(one.open for one in self._crew)
        refusing = [one for one in self._crew if one.id in self._refused]
        if refusing and not able and len(refusing) == len(self._crew):
            said = self._refused[refusing[0].id]
            raise SpecError(
                f"no worker can begin: {said.error}", hints=tuple(said.traceback.strip().splitlines()[-1:])
            )
        for worker in refusing if able else ():
            said = self._refused.pop(worker.id)
            self._ledger.note(worker.id, "cannot open", said.error)
            self._crew.send(worker, End(f"it cannot open its part: {said.error}"))
            self._crew.leave(worker, said.error)

    # -- units
    # --------------------------------------------------------------------------------------------------------

    def _unit(self, worker: Worker, name: str, *, training: bool) -> Unit | None:
        number = self._names.number(name)
        unit = self._orders.units.get(number) if number is not None else None
        return unit if unit is not None and unit.training is training and worker.id in unit.workers else None

    def _finished(self, worker: Worker, said: Finished) -> None:
        for state in (said.state, said.start_from):
            if state:
                self._states.lies(state, worker.hello.shelf)
        unit = self._unit(worker, said.unit, training=True)
        if unit is not None:
            unit.finished[worker.id] = said
            if len(unit.finished) < len(unit.workers):
                return  # a group: acknowledged when all have said so
            self._hopped(unit, said)
        elif self._adopting.fits(self._ledger.book, said):
            self._ledger.hop(said, (worker.id,) * len(said.partitions))
            self._trials.hopped(said.trial, said.state)
        elif said.state not in self._ledger.book.made:
            self._states.drop([said.state])
        self._acknowledge(worker, unit=said.unit)
        self._let_go(worker, said.unit)

    def _hopped(self, unit: Unit, said: Finished) -> None:
        del self._orders.units[unit.number]
        self._breaks = self._breaks if len(unit.workers) == 1 else 0
        self._ledger.hop(said, unit.workers)
        self._trials.hopped(unit.trial, said.state)
        self._trials.facts.append(HopFinished(unit.number, said.state, said.ended_at - said.began_at))
        self._stragglers.count(unit.workers, unit.trial, said.ended_at - said.began_at)
        for one in unit.finished:
            member = self._crew.find(one)
            if member is not None:
                self._acknowledge(member, unit=said.unit)

    def _evaluated(self, worker: Worker, said: Evaluated) -> None:
        unit = self._unit(worker, said.unit, training=False)
        if unit is not None:
            del self._orders.units[unit.number]
            self._trials.facts.append(EvaluationFinished(unit.number))
        self._ledger.evaluated(said, worker.id, of="validation" if self._validates else "train")
        training = self._trials.find(said.trial)
        if training is not None:
            self._trials.report(training)
        self._acknowledge(worker, unit=said.unit)
        self._let_go(worker, said.unit)

    def _failed(self, worker: Worker, said: Failed) -> None:
        if not said.unit:
            self._refuse(worker, said)
            return
        self._acknowledge(worker, unit=said.unit)
        unit = self._unit(worker, said.unit, training=True) or self._unit(worker, said.unit, training=False)
        orphan = self._adopting.find(said.unit)
        trial = unit.trial if unit is not None else orphan.doing.trial if orphan is not None else None
        if trial is not None and said.kind in ("code", "memory"):
            self._trials.fail(trial, said.error, said.traceback)
        elif unit is not None:
            if said.kind == "state":
                self._states.is_missing(unit.state, worker.hello.shelf)
                self._count_lack(unit, said.error)
            if said.kind == "group":
                self._count_break(worker, said.error)
            self._repeat(unit)
            if not self._states.is_there(unit.state):
                self._trials.go_back(unit.trial)
        self._let_go(worker, said.unit)

    def _count_lack(self, unit: Unit, error: str) -> None:
        training = self._trials.find(unit.trial)
        if training is not None:
            where = unit.epoch, unit.partitions
            training.lacks[where] += 1
            if training.lacks[where] >= _LACKS:
                self._trials.fail(
                    unit.trial,
                    f"no worker could have the state that a unit of epoch {unit.epoch + 1} begins "
                    f"with, {_LACKS} times: {error}",
                )

    def _count_break(self, worker: Worker, error: str) -> None:
        self._breaks += 1
        if self._breaks == _BREAKS:
            self.together = False
            self._ledger.note(
                worker.id, "alone", f"{error}; from now on each trial uses one worker at a time"
            )

    def _repeat(self, unit: Unit) -> None:
        self._orders.units.pop(unit.number, None)
        for worker in unit.workers:
            self._crew.cancel(worker, self._names.of(unit.number))
        self._trials.facts.append(UnitFailed(unit.number))

    def _let_go(self, worker: Worker, unit: str) -> None:
        """A unit of an earlier driver is over: its trial goes on, and so does who did it."""
        orphan = self._adopting.end(unit, worker.id)
        if orphan is not None:
            training = self._trials.find(orphan.doing.trial)
            if training is not None:
                self._trials.admit(training)
            self.join(worker)

    # -- what was written down
    # ------------------------------------------------------------------------------------------

    def _acknowledge(self, worker: Worker, *, unit: str = "", named: str = "") -> None:
        units, names = self._acks.setdefault(worker.id, ([], []))
        if unit:
            units.append(unit)
        if named:
            names.append(named)

    def acknowledge(self) -> None:
        for worker_id, (units, names) in self._acks.items():
            worker = self._crew.find(worker_id)
            if worker is not None:
                self._crew.send(worker, Acknowledge(tuple(units), tuple(names)))
        self._acks.clear()
