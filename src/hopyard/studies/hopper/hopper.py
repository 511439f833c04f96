"""Model hopper parallelism at work: workers connect, trials hop between them, and what is lost on the way is made good.

One thread decides, the driver's, inside `wait`: what came is written to the journal, told to the coordinator, and what that says is
sent. Nothing else stands between the end of one unit and the start of the next.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.domain.study import Goal
from hopyard.errors import SpecError
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import (
    EvaluationFinished,
    EvaluationWanted,
    Event,
    HopFinished,
    TrialAdmitted,
    TrialWithdrawn,
    UnitFailed,
    WorkerJoined,
    WorkerLost,
    WorkersToSpare,
)
from hopyard.studies.hopper.adopting import Adopting
from hopyard.studies.hopper.book import Best, Book
from hopyard.studies.hopper.crew import Crew, Patience, Worker
from hopyard.studies.hopper.orders import Orders
from hopyard.studies.hopper.restoring import origin_of, resumed
from hopyard.studies.hopper.saving import Saving
from hopyard.studies.hopper.stragglers import Stragglers
from hopyard.studies.hopper.training import Training
from hopyard.studies.hopper.units import Names, Unit
from hopyard.studies.hopper.whereabouts import Whereabouts
from hopyard.studies.link.hub import Hub, HubEvent
from hopyard.studies.messages import (
    Acknowledge,
    Beat,
    Cancel,
    Doing,
    End,
    Evaluated,
    Failed,
    Finished,
    Hello,
    Named,
    Open,
    Ready,
)
from hopyard.studies.states.serve import listen
from hopyard.studies.states.shelf import Shelf
from hopyard.studies.trainer import Ground, News, Reported, TrialFailed, Work

_TICK_S = 0.1
_LOSSES = 3  # times that the worker of the same unit may be lost before the trial is taken for the cause


def open_hopper(ground: Ground, scratch: Path) -> Hopper:
    """scratch: a folder on disk that all processes of the attempt share on this host, the workers' own."""
    return Hopper(ground, Shelf(hashlib.blake2b(ground.secret, digest_size=8).hexdigest(), scratch))


class Hopper:
    """A `Trainer`. shelf: the driver's own. Raises SpecError where the study has no `mop`, or no worker can open its data."""

    def __init__(self, ground: Ground, shelf: Shelf, *, patience: Patience | None = None) -> None:
        if ground.spec.mop is None:
            raise SpecError("parallel: `mop` needs a section `mop`", hints=("say `mop:` with `trainable`, `workers` and `dataset`",))
        self._ground, self._shelf, self._mop = ground, shelf, ground.spec.mop
        self._patience = patience or Patience()
        plan = self._mop.partitions
        self._parts = plan.parts
        self._validates = plan.validation > 0 or bool(plan.validation_from)
        self._book = Book.of(ground.past, self._parts)
        self._expected = frozenset(self._book.present)
        self._write("hopper", start=self._book.starts + 1)
        self._names = Names(self._book.starts)
        host, port = ground.listen
        self._hub = Hub(ground.secret, host=host if host in ("127.0.0.1", "localhost", "::1") else "", port=port)
        self._server = listen(ground.secret, shelf)
        self._crew = Crew(
            self._hub, count=self._mop.workers, parts=self._parts, patience=self._patience, opening=self._opening, note=self._note
        )  # fmt: skip
        saved = ground.saved.files if ground.saved is not None else {}
        self._states = Whereabouts(shelf, f"{host}:{self._server.port}", saved, self._crew, ground.say)
        self._saving = Saving(ground, shelf, every_s=self._patience.save_s, over=self._hub.wake)
        self._coordinator = MopCoordinator(map(PartitionId, range(self._parts)), validation=map(PartitionId, range(self._parts)))
        self._orders = Orders(self._coordinator, self._crew, self._states, self._names, training=not self._validates)
        self._adopting = Adopting(self._names)
        self._stragglers = Stragglers(self._coordinator, self._crew, self._note)
        self._trials: dict[TrialId, Training] = {}
        self._pending: list[Work] = []
        self._facts: list[Event] = []
        self._news: list[News] = []
        self._acks: dict[WorkerId, tuple[list[str], list[str]]] = {}
        self._refused: dict[WorkerId, Failed] = {}  # workers that could not open what they were told to
        self._began = self._room_left = False
        self._together = self._mop.hybrid
        self._first_at: float | None = None
        self._ticked_at, self._alone_since = 0.0, time.monotonic()
        for trial, left in self._book.left.items():
            self._states.keep(trial, {left.state})
        if self._book.best is not None:
            self._states.keep("best", {self._book.best.state})

    # -- the Trainer ------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Where workers connect."""
        return self._hub.port

    def room(self) -> int:
        concurrent = self._ground.spec.concurrent or 2 * self._mop.workers
        alive = sum(not training.reached for training in self._trials.values()) + len(self._pending)
        self._room_left = concurrent > alive
        return max(concurrent - alive, 0)

    def start(self, work: Work) -> None:
        if self._began:
            self._begin(work)
            self._decide()
        else:
            self._pending.append(work)

    def end(self, trial: TrialId, *, keep: bool) -> None:
        self._pending = [work for work in self._pending if work.trial != trial]
        training = self._trials.get(trial)
        state = epoch = None
        if training is not None:
            state, epoch = training.ends.get(training.told), training.told
        elif trial in self._book.left:
            state, epoch = self._book.left[trial].state, self._book.left[trial].epoch
        kept = keep and state is not None
        self._write("left", trial=trial, state=state if kept else "", epoch=epoch if kept else 0)
        self._give_up(trial, {state} if kept and state else set())
        self._decide()

    def wait(self, timeout_s: float) -> list[News]:
        deadline = time.monotonic() + timeout_s
        self._spare(self._room_left and self._together)
        while not self._news and not self._ground.stopping():
            left = deadline - time.monotonic()
            for event in self._hub.wait(min(max(left, 0.0), _TICK_S)):
                self._take(event)
            self._tick()
            self._decide()
            if left <= 0:
                break
        news, self._news = self._news, []
        if news:
            self._spare(False)
        return news

    def close(self, *, over: bool) -> None:
        """over: the best state is saved; else all that the study would go on from."""
        self._saving.wait()
        self._save(only_best=over)
        self._saving.wait()
        for worker in self._crew:
            self._crew.send(worker, End("the study is over" if over else "the study goes on later"))
        self._hub.close()
        self._server.close()

    @property
    def best(self) -> Best | None:
        """The state that had the best value of the study's metric."""
        return self._book.best

    def export(self, state: str, path: Path) -> int:
        """Write a state that lies on the driver's shelf to a file. Raises NotFound."""
        return self._shelf.export(state, path)

    # -- trials --------------------------------------------------------------------------------------------------------

    def _begin(self, work: Work) -> None:
        """Take it up where it was, where the driver began again; else from the state that it is to begin with."""
        self._room_left = False
        before = self._book.begun.get(work.trial)
        if work.resumed and before is not None and before.budget == work.budget and dict(before.params) == dict(work.params):
            training = resumed(self._book, work, self._states.is_there)
        else:
            state, at = origin_of(self._book, self._trials, work, self._states.is_there)
            if work.trial in self._trials:
                self._withdraw(work.trial)
            self._write("begun", trial=work.trial, state=state, epoch=at.epoch, budget=work.budget, params=dict(work.params))
            training = Training(work.trial, work.params, work.budget, work.done, state, at)
            if state and not at.visited and at.epoch == work.done:
                training.ends[at.epoch] = state
        self._trials[work.trial] = training
        self._keep(training)
        self._admit(training)

    def _admit(self, training: Training) -> None:
        """What is still under way from an earlier driver is waited for."""
        if not self._adopting.trains(training.trial) and not training.is_trained:
            at = training.at
            self._facts.append(TrialAdmitted(training.trial, training.budget, training.state, None, at.epoch, at.visited))
        self._want_evaluations(training)
        self._report(training)

    def _want_evaluations(self, training: Training) -> None:
        for step, state, lacks in training.unmeasured(self._book.results, self._parts):
            missing = lacks - self._adopting.evaluates(state)
            if missing:
                self._facts.append(EvaluationWanted(training.trial, step - 1, state, missing))

    def _report(self, training: Training) -> None:
        for one in training.news(self._book.results, self._parts):
            self._news.append(one)
            if isinstance(one, Reported):
                self._compare(training, one.step, one.metrics)
        self._keep(training)

    def _compare(self, training: Training, step: int, metrics: Mapping[str, float]) -> None:
        value, best = metrics.get(self._ground.spec.metric, math.nan), self._book.best
        sign = 1.0 if self._ground.spec.goal is Goal.MAX else -1.0
        if math.isfinite(value) and (best is None or sign * value > sign * best.value):
            state = training.ends[step]
            self._write("best", trial=training.trial, step=step, state=state, value=value)
            self._states.keep("best", {state})

    def _keep(self, training: Training) -> None:
        for step in [step for step in training.ends if step < training.told]:
            del training.ends[step]
        self._states.keep(training.trial, training.kept())

    def _withdraw(self, trial: TrialId) -> None:
        self._facts.append(TrialWithdrawn(trial))
        for worker, unit in self._adopting.cancel(trial):
            self._cancel(worker, unit)
        self._decide()

    def _give_up(self, trial: TrialId, kept: set[str]) -> None:
        self._news = [one for one in self._news if one.trial != trial]
        if self._trials.pop(trial, None) is not None:
            self._withdraw(trial)
        self._states.keep(trial, kept)

    def _fail(self, trial: TrialId, error: str, traceback: str = "") -> None:
        if trial in self._trials:
            self._give_up(trial, set())
            self._news.append(TrialFailed(trial, error, traceback))

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _take(self, event: HubEvent) -> None:
        said = self._crew.take(event)
        if said is None:
            return
        worker, message = said
        match message:
            case Hello():
                self._greet(worker)
            case Ready():
                self._refused.pop(worker.id, None)
                self._together = self._together and message.together
                self._join(worker)
            case Finished():
                self._finished(worker, message)
            case Evaluated():
                self._evaluated(worker, message)
            case Named():
                if message.state not in self._book.digests:
                    self._write("named", unit=message.unit, state=message.state, digest=message.digest)
                self._acknowledge(worker, named=message.unit)
            case Failed():
                self._failed(worker, message)
            case Beat():
                if not worker.settled:
                    self._settle(worker)

    def _greet(self, worker: Worker) -> None:
        self._first_at = self._first_at or time.monotonic()
        for state in worker.hello.states:
            self._states.lies(state, worker.hello.shelf)
        for doing in worker.hello.doing:
            self._find_out(worker, doing)
        self._join(worker)

    def _find_out(self, worker: Worker, doing: Doing) -> None:
        """Whether what it does is still wanted."""
        number = self._names.number(doing.unit)
        unit = self._orders.units.get(number) if number is not None else None
        if unit is None or worker.id not in unit.workers:
            if number is None and not self._began:
                self._adopting.add(doing, worker.id)
            else:
                self._cancel(worker.id, doing.unit)

    def _cancel(self, worker: WorkerId, unit: str) -> None:
        found = self._crew.find(worker)
        if found is not None:
            self._crew.send(found, Cancel(unit))

    def _settle(self, worker: Worker) -> None:
        """The first beat after its hello: what it has to say again has come. A unit that it does not do and has not done it never
        heard of; a state that nobody needs was dropped while it was away."""
        worker.settled = True
        doing = {one.unit for one in worker.hello.doing}
        for unit in list(self._orders.units.values()):
            unheard = self._names.of(unit.number) not in doing and worker.id not in unit.finished
            if worker.id in unit.workers and unheard and unit.begun_at < worker.greeted_at:
                self._repeat(unit)
        if self._began:
            self._states.drop_all_but_kept(self._being_made())

    def _being_made(self) -> set[str]:
        return {self._names.of(number) for number in self._orders.units} | self._adopting.units

    def _join(self, worker: Worker) -> None:
        """Whoever has something open, and nothing to do for an earlier driver, takes part."""
        if self._began and not self._adopting.keeps(worker.id) and worker.open:
            judges = worker.judges if self._validates else worker.open
            self._facts.append(WorkerJoined(worker.id, worker.open, None, judges))

    # -- what units bring -------------------------------------------------------------------------------------------------

    def _unit(self, worker: Worker, name: str, *, training: bool) -> Unit | None:
        number = self._names.number(name)
        unit = self._orders.units.get(number) if number is not None else None
        return unit if unit is not None and unit.training is training and worker.id in unit.workers else None

    def _finished(self, worker: Worker, said: Finished) -> None:
        self._states.lies(said.state, worker.hello.shelf)
        if said.start_from:
            self._states.lies(said.start_from, worker.hello.shelf)
        unit = self._unit(worker, said.unit, training=True)
        if unit is not None:
            unit.finished[worker.id] = said
            if len(unit.finished) < len(unit.workers):
                return  # a group: acknowledged when all have said so
            self._hopped(unit, said)
        elif self._adopting.fits(self._book, said):
            self._record_hop(said, (worker.id,) * len(said.partitions))
            self._adopted(said.trial, said.state)
        elif said.state not in self._book.made:
            self._states.drop([said.state])
        self._acknowledge(worker, unit=said.unit)
        self._let_go(worker, said.unit)

    def _hopped(self, unit: Unit, said: Finished) -> None:
        del self._orders.units[unit.number]
        self._record_hop(said, unit.workers)
        self._adopted(unit.trial, said.state)
        took = said.ended_at - said.began_at + said.fetch_s + said.save_s
        self._facts.append(HopFinished(unit.number, said.state, took))
        for one in unit.finished:
            member = self._crew.find(one)
            if member is not None:
                self._acknowledge(member, unit=said.unit)
        self._stragglers.count(unit.workers)

    def _record_hop(self, said: Finished, workers: tuple[WorkerId, ...]) -> None:
        self._write(
            "hop", n=self._book.hops + 1, unit=said.unit, trial=said.trial, epoch=said.epoch, partitions=list(said.partitions),
            workers=list(workers), began_at=said.began_at, ended_at=said.ended_at, start_from=said.start_from, state=said.state,
            bytes=said.bytes, fetch_s=said.fetch_s, save_s=said.save_s, fetched_bytes=said.fetched_bytes,
        )  # fmt: skip

    def _adopted(self, trial: TrialId, state: str) -> None:
        """The trial has come to this state."""
        training = self._trials.get(trial)
        if training is not None:
            training.hopped(state, self._book.made[state].at)
            self._keep(training)

    def _evaluated(self, worker: Worker, said: Evaluated) -> None:
        unit = self._unit(worker, said.unit, training=False)
        if unit is not None:
            del self._orders.units[unit.number]
            self._facts.append(EvaluationFinished(unit.number))
        if said.state in self._book.made and said.partition not in self._book.results.get(said.state, {}):
            self._write(
                "evaluated", unit=said.unit, trial=said.trial, epoch=said.epoch, partition=said.partition, worker=worker.id,
                began_at=said.began_at, ended_at=said.ended_at, metrics=dict(said.metrics), rows=said.rows, state=said.state,
                of="validation" if self._validates else "train",
            )  # fmt: skip
        training = self._trials.get(said.trial)
        if training is not None:
            self._report(training)
        self._acknowledge(worker, unit=said.unit)
        self._let_go(worker, said.unit)

    def _failed(self, worker: Worker, said: Failed) -> None:
        if not said.unit:
            self._refuse(worker, said)
            return
        self._acknowledge(worker, unit=said.unit)
        number = self._names.number(said.unit)
        unit = self._orders.units.get(number) if number is not None else None
        if unit is not None and worker.id in unit.workers:
            if said.kind in ("code", "memory"):
                self._fail(unit.trial, said.error, said.traceback)
            elif said.kind == "state" and unit.state:
                self._states.is_missing(unit.state, worker.hello.shelf)
                self._repeat(unit)
                if not self._states.is_there(unit.state):
                    self._go_back(unit.trial)
            else:
                self._repeat(unit)
        elif said.kind in ("code", "memory") and (orphan := self._adopting.find(said.unit)) is not None:
            self._fail(orphan.doing.trial, said.error, said.traceback)
        self._let_go(worker, said.unit)

    def _repeat(self, unit: Unit) -> None:
        self._orders.units.pop(unit.number, None)
        for worker in unit.workers:
            self._cancel(worker, self._names.of(unit.number))
        self._facts.append(UnitFailed(unit.number))

    def _go_back(self, trial: TrialId) -> None:
        """Its newest state is gone for good: from the newest before that is not."""
        training = self._trials.pop(trial, None)
        if training is not None:
            self._withdraw(trial)
            work = Work(trial, training.params, training.budget, training.told, resumed=True)
            self._ground.say(f"trial {trial}: its state was lost with its worker; it goes on from an older one")
            self._begin(work)

    def _let_go(self, worker: Worker, unit: str) -> None:
        """A unit of an earlier driver is over: its trial goes on, and so does who did it."""
        orphan = self._adopting.end(unit, worker.id)
        if orphan is not None:
            training = self._trials.get(orphan.doing.trial)
            if training is not None:
                self._admit(training)
            self._join(worker)

    def _refuse(self, worker: Worker, said: Failed) -> None:
        """It cannot open its partitions or the user's code. Where nobody can, that is the study's error."""
        self._refused[worker.id] = said
        self._note(worker.id, "cannot open", said.error)
        if all(one.id in self._refused and not one.open for one in self._crew):
            raise SpecError(f"no worker can begin: {said.error}", hints=tuple(said.traceback.strip().splitlines()[-1:]))
        self._crew.send(worker, End(f"it cannot open its part: {said.error}"))
        self._crew.leave(worker, said.error)

    def _acknowledge(self, worker: Worker, *, unit: str = "", named: str = "") -> None:
        units, names = self._acks.setdefault(worker.id, ([], []))
        if unit:
            units.append(unit)
        if named:
            names.append(named)

    # -- deciding -------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        while self._facts and self._began:
            facts, self._facts = self._facts, []
            self._orders.give(self._coordinator.handle(*facts), self._trials, self._ground.spec.seed)
        for worker_id, (units, names) in self._acks.items():
            worker = self._crew.find(worker_id)
            if worker is not None:
                self._crew.send(worker, Acknowledge(tuple(units), tuple(names)))
        self._acks.clear()
        self._orders.hint()

    def _spare(self, spare: bool) -> None:
        if spare is not self._orders.spare:
            self._orders.spare = spare
            self._facts.append(WorkersToSpare(spare))

    # -- from time to time ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at < _TICK_S:
            return
        self._ticked_at = now
        for lost in self._crew.check():
            self._lose(lost.worker)
        self._stay_with_somebody(now)
        if not self._began:
            self._begin_all(now)
        else:
            self._crew.take_all_seats()
            for worker in self._crew.give_up(self._reads_none_of):
                self._join(worker)
            self._stragglers.check(self._orders.units.values())
            if self._saving.is_due:
                self._save(only_best=False)
            if not self._saving.is_running:
                self._states.keep("save", ())

    def _stay_with_somebody(self, now: float) -> None:
        if len(self._crew):
            self._alone_since = now
        elif now - self._alone_since > self._patience.nobody_s:
            raise SpecError(
                f"the study has had no worker for {self._patience.nobody_s:.0f} s",
                hints=("`hop logs RUN --role worker` shows why they ended",),
            )

    def _begin_all(self, now: float) -> None:
        if self._first_at is None:
            return
        somebody = any(worker.open for worker in self._crew)
        if not (self._crew.is_complete(self._expected) or (somebody and now - self._first_at > self._patience.gather_s)):
            return
        self._began = True
        if len(self._crew) < self._mop.workers:
            self._ground.say(f"{len(self._crew)} of {self._mop.workers} workers are there; they share the partitions of the others")
        self._crew.take_all_seats()
        pending, self._pending = self._pending, []
        for work in pending:
            self._begin(work)
        for worker, unit in self._adopting.unclaimed(self._trials):
            self._cancel(worker, unit)
        for member in self._crew:
            self._join(member)
        self._states.drop_all_but_kept(self._being_made())

    def _lose(self, worker: Worker) -> None:
        for unit in [unit for unit in self._orders.units.values() if worker.id in unit.workers]:
            if unit.finished:  # a group all of whose others are done, or nearly
                self._hopped(unit, next(iter(unit.finished.values())))
                continue
            for other in unit.workers:
                if other != worker.id:
                    self._cancel(other, self._names.of(unit.number))
            del self._orders.units[unit.number]
            training = self._trials.get(unit.trial)
            if training is not None:
                training.losses[unit.epoch, unit.partitions] += 1
                if training.losses[unit.epoch, unit.partitions] >= _LOSSES:
                    self._fail(unit.trial, f"the worker that trained it was lost {_LOSSES} times in the same unit (out of memory?)")
        self._facts.append(WorkerLost(worker.id))
        self._refused.pop(worker.id, None)
        for orphan in self._adopting.lose(worker.id):
            training = self._trials.get(orphan.doing.trial)
            if training is not None:
                self._admit(training)
        for trial in [one.trial for one in self._trials.values() if not self._states.is_there(one.state)]:
            self._go_back(trial)

    def _reads_none_of(self, worker: Worker, partitions: frozenset[PartitionId]) -> bool:
        return not any(worker.id in unit.workers and partitions & set(unit.partitions) for unit in self._orders.units.values())

    def _save(self, *, only_best: bool) -> None:
        states: dict[str, Any] = {}
        if self._book.best is not None:
            states[self._book.best.state] = {"trial": self._book.best.trial, "epoch": self._book.best.step, "best": True}
        if not only_best:
            for trial, left in self._book.left.items():
                states[left.state] = {"trial": trial, "epoch": left.epoch}
            for training in self._trials.values():
                for step, state in training.ends.items():
                    states[state] = {"trial": training.trial, "epoch": step}
        states = {state: note for state, note in states.items() if state and self._states.is_there(state)}
        sources = {state: self._states.sources_for_driver(state) for state in states}
        self._states.keep("save", states)
        if not self._saving.begin(sources, states):
            self._states.keep("save", ())

    # -- writing down ----------------------------------------------------------------------------------------------------

    def _write(self, kind: str, **fields: Any) -> None:
        self._ground.journal.write(kind, **fields)
        self._book.take({"kind": kind, **fields})

    def _note(self, worker: WorkerId, event: str, detail: str) -> None:
        self._write("worker", worker=worker, event=event, detail=detail)
        self._ground.say(f"worker {worker} {event}: {detail}")

    def _opening(self, partitions: frozenset[PartitionId]) -> Open:
        mop, chosen = self._mop, tuple(sorted(partitions))
        return Open(
            chosen, chosen if self._validates else (), mop.dataset, replace(mop.partitions), mop.trainable, mop.deterministic, mop.threads
        )  # fmt: skip
