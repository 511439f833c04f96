"""Model hopper parallelism at work: workers connect, trials hop between them, and what is lost on the way is
made good.

One thread decides, the driver's, inside `wait`: what came is written to the journal, told to the coordinator,
and what that says is sent. Nothing else stands between the end of one unit and the start of the next: states
are dropped, news is acknowledged and hints are given after that.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.errors import SpecError, WorkersLost
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import WorkersToSpare
from hopyard.private_files import make_folder
from hopyard.studies.hopper.adopting import Adopting
from hopyard.studies.hopper.beginning import states_in
from hopyard.studies.hopper.book import Best
from hopyard.studies.hopper.crew import Crew, Patience, Worker
from hopyard.studies.hopper.ledger import Ledger
from hopyard.studies.hopper.orders import Orders
from hopyard.studies.hopper.reception import Reception
from hopyard.studies.hopper.relay import Relay
from hopyard.studies.hopper.saving import Saving
from hopyard.studies.hopper.stragglers import Stragglers
from hopyard.studies.hopper.trials import Trials
from hopyard.studies.hopper.units import Names
from hopyard.studies.hopper.whereabouts import Whereabouts
from hopyard.studies.link.hub import Hub
from hopyard.studies.link.wire import join_address
from hopyard.studies.messages import End, Open
from hopyard.studies.states.shelf import Shelf
from hopyard.studies.trainer import Ground, News, Work

_TICK_S = 0.1
_PAUSE_S = 0.005  # without news: a unit that was asked for has begun
_LAST_WORDS_S = 3.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def open_hopper(ground: Ground, scratch: Path) -> Hopper:
    """scratch: a folder on disk that all processes of the attempt share on this host, the workers' own."""
    make_folder(scratch)
    return Hopper(ground, Shelf(hashlib.blake2b(ground.secret, digest_size=8).hexdigest(), scratch), scratch)


class Hopper:
    """A `Trainer`. shelf: the driver's own. Raises SpecError where the study has no `mop`."""

    def __init__(
        self, ground: Ground, shelf: Shelf, scratch: Path, *, patience: Patience | None = None
    ) -> None:
        if ground.spec.mop is None:
            raise SpecError(
                "parallel: `mop` needs a section `mop`",
                hints=("say `mop:` with `trainable`, `workers` and `dataset`",),
            )
        self._ground, self._shelf, self._mop = ground, shelf, ground.spec.mop
        self._patience = patience or Patience()
        parts = self._mop.partitions.parts
        self._validates = self._mop.partitions.validation > 0 or bool(self._mop.partitions.validation_from)
        self._ledger = Ledger(ground, parts)
        names, adopting = Names(self._ledger.book.starts), Adopting(Names(self._ledger.book.starts))
        host, port = ground.listen
        self._relay = Relay(shelf, lambda event: self._hub.post(event))  # noqa: PLW0108 - there is no hub yet
        self._hub = Hub(
            ground.secret, host=host if host in _LOOPBACK else "", port=port, serve=self._relay.serve
        )
        self._crew = Crew(
            self._hub,
            count=self._mop.workers,
            parts=parts,
            patience=self._patience,
            opening=self._opening,
            note=self._ledger.note,
        )
        saved = states_in(ground.saved.files if ground.saved is not None else {}, ground.spec.beginning)
        self._states = Whereabouts(
            shelf, join_address(host, self._hub.port), saved, self._crew, ground.say, self._relay.refuse
        )
        self._saving = Saving(
            ground, shelf, self._relay.obtain, scratch, every_s=self._patience.save_s, over=self._hub.wake
        )
        each = [PartitionId(at) for at in range(parts)]
        self._coordinator = MopCoordinator(each, validation=each)
        self._orders = Orders(
            self._coordinator, self._crew, self._states, names, training=not self._validates
        )
        self._stragglers = Stragglers(
            self._coordinator, self._crew, self._ledger.note, unit_timeout_s=self._mop.unit_timeout_s
        )
        self._stragglers.learn_from(ground.past)
        self._trials = Trials(ground, self._ledger, self._states, adopting, self._crew, parts)
        self._adopting = adopting
        self._reception = Reception(
            self._ledger,
            self._crew,
            self._states,
            self._orders,
            self._trials,
            adopting,
            self._stragglers,
            names,
            validates=self._validates,
        )
        self._unnamed_before = self._ledger.book.unnamed  # of an earlier driver's: nobody may be left to tell
        self._pending: list[Work] = []
        self._room_left = self._spare = False
        self._ticked_at, self._alone_since = 0.0, time.monotonic()
        self._owing_since: float | None = None  # acknowledgements, drops and hints
        self._ordered = False  # since the last of these; what else is owed is not worth waking for

    # -- the Trainer
    # ------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Where workers connect."""
        return self._hub.port

    def room(self) -> int:
        concurrent = self._ground.spec.concurrent or 2 * self._mop.workers
        alive = sum(not training.reached for training in self._trials) + len(self._pending)
        self._room_left = concurrent > alive
        return max(concurrent - alive, 0)

    def start(self, work: Work) -> None:
        self._room_left = False
        if self._reception.began:
            self._trials.begin(work)
            self._decide()
        else:
            self._pending.append(work)

    def end(self, trial: TrialId, *, keep: bool) -> None:
        self._pending = [work for work in self._pending if work.trial != trial]
        self._trials.end(trial, keep=keep)
        self._decide()

    def wait(self, timeout_s: float) -> list[News]:
        """Raises SpecError where no worker can open its data or the user's code, or none ever came;
        WorkersLost where none was there for long."""
        deadline = time.monotonic() + timeout_s
        while not self._trials.news and not self._ground.stopping():
            self._spare_and_decide()
            left = deadline - time.monotonic()
            events = self._hub.wait(min(max(left, 0.0), _PAUSE_S if self._ordered else _TICK_S))
            for event in events:
                self._reception.take(event)
            self._spare_and_decide()
            if events and self._owing_since is None:
                self._owing_since = time.monotonic()
            if not events or (
                self._owing_since is not None and time.monotonic() - self._owing_since > _TICK_S
            ):
                self._follow_up()
            self._tick()
            if left <= 0:
                break
        news, self._trials.news = self._trials.news, []
        if news:
            self._have_to_spare(False)
            self._follow_up()
        return news

    def close(self, *, over: bool) -> None:
        """over: the best state is saved; else all that the study would go on from."""
        self._follow_up()
        self._finish_saving()
        self._reception.leaving = not over
        self._save(leaving=not over, only_best=over)
        self._hear_out()
        self._finish_saving()
        for worker in self._crew:
            self._crew.send(worker, End("the study is over" if over else "the study goes on later"))
        self._hub.close()
        self._shelf.close()

    def _finish_saving(self) -> None:
        """What is saved may still have to come from workers."""
        while self._saving.is_running:
            self._hear()

    def _hear(self) -> None:
        for event in self._hub.wait(_TICK_S):
            self._reception.take(event)
        self._reception.acknowledge()

    def _hear_out(self) -> None:
        """The digests of the last states are told a little after the states."""
        until = time.monotonic() + _LAST_WORDS_S
        while (
            self._ledger.book.unnamed > self._unnamed_before and len(self._crew) and time.monotonic() < until
        ):
            self._hear()

    @property
    def best(self) -> Best | None:
        """The state that had the best value of the study's metric."""
        return self._ledger.book.best

    # -- deciding
    # -------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        while self._trials.facts and self._reception.began:
            facts, self._trials.facts = self._trials.facts, []
            self._orders.give(self._coordinator.handle(*facts), self._trials.by_id, self._ground.spec.seed)
            self._owing_since, self._ordered = self._owing_since or time.monotonic(), True

    def _follow_up(self) -> None:
        """All that may wait until who was told to begin has begun: before that it is in the way, most of all
        where both share a processor."""
        self._owing_since, self._ordered = None, False
        with self._crew.in_one_piece():
            self._reception.acknowledge()
            self._states.drop_unkept()
            self._orders.hint()

    def _spare_and_decide(self) -> None:
        """Whether workers' code can train in groups is known once they are ready: each time before anybody is
        put into one."""
        self._have_to_spare(self._room_left and self._mop.hybrid and self._reception.together)
        self._decide()

    def _have_to_spare(self, spare: bool) -> None:
        if spare is not self._spare:
            self._spare = spare
            self._trials.facts.append(WorkersToSpare(spare))

    # -- from time to time
    # ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at < _TICK_S:
            return
        self._ticked_at = now
        self._crew.check()
        self._reception.lose_lost()
        self._stay_with_somebody(now)
        if not self._reception.began:
            self._begin(now)
            return
        self._crew.take_all_seats(absent=self._waited_s(now) > self._patience.absent_s)
        for worker in self._crew.give_up(self._reads_none_of):
            self._reception.join(worker)
        self._stragglers.check(list(self._orders.units.values()), self._adopting.orphans)
        if not self._saving.is_running:
            self._states.keep("save", ())
        if self._saving.is_due:
            self._save()

    def _stay_with_somebody(self, now: float) -> None:
        if self._crew.has_hope:
            self._alone_since = now
        elif now - self._alone_since > self._patience.nobody_s:
            failure = SpecError if self._reception.first_at is None else WorkersLost
            raise failure(
                f"the study has had no worker for {self._patience.nobody_s:.0f} s"
                + (
                    ", but such as hang or die before they have opened their data and your code"
                    if self._crew.begins_in_vain
                    else ""
                ),
                hints=("`hop logs STUDY --rank 1` shows what the first of them wrote",),
            )

    def _begin(self, now: float) -> None:
        """When all workers are there, or those that are have waited long enough."""
        late = self._waited_s(now) > self._patience.gather_s and any(worker.open for worker in self._crew)
        complete = self._crew.is_complete(self._ledger.expected)
        if not late and not complete:
            return
        self._reception.began = True
        if len(self._crew) < self._mop.workers:
            self._ground.say(
                f"{len(self._crew)} of {self._mop.workers} workers are there; the study begins with them"
            )
        self._crew.take_all_seats(absent=complete)
        pending, self._pending = self._pending, []
        for work in pending:
            self._trials.begin(work)
        for member, unit in self._adopting.unclaimed(self._trials.by_id):
            self._crew.cancel(member, unit)
        for worker in self._crew:
            self._reception.join(worker)
        self._reception.tidy()

    def _waited_s(self, now: float) -> float:
        """Since the first worker came."""
        return 0.0 if self._reception.first_at is None else now - self._reception.first_at

    def _reads_none_of(self, worker: Worker, partitions: frozenset[PartitionId]) -> bool:
        return not any(
            worker.id in unit.workers and partitions & set(unit.partitions)
            for unit in self._orders.units.values()
        )

    def _save(self, *, leaving: bool = False, only_best: bool = False) -> None:
        """The best, what a fork began with (for a replay, and for who forks it as it is), and what each trial
        had after whole epochs; leaving: also in the middle of one."""
        states: dict[str, Any] = {}
        best, first = self._ledger.book.best, self._ledger.book.first
        if best is not None:
            states[best.state] = {
                "trial": best.trial,
                "epoch": best.step,
                "best": True,
                "value": best.value,
                "params": dict(best.params),
            }
        if first.state:
            states[first.state] = {"trial": "0", "epoch": first.epoch, "beginning": True}
        if not only_best:
            for trial, left in self._ledger.book.left.items():
                states.setdefault(left.state, {"trial": trial, "epoch": left.epoch})
            for training in self._trials:
                for step, state in training.ends.items():
                    states.setdefault(state, {"trial": training.trial, "epoch": step})
                if leaving:
                    states.setdefault(training.state, {"trial": training.trial, "epoch": training.at.epoch})
        states = {state: note for state, note in states.items() if state and self._states.is_there(state)}
        if first.state and first.state not in states:
            return  # by that a checkpoint of its own is known
        self._states.keep("save", states)
        self._saving.begin(states)

    def _opening(self, partitions: frozenset[PartitionId]) -> Open:
        mop, chosen = self._mop, tuple(sorted(partitions))
        return Open(
            chosen,
            chosen if self._validates else (),
            mop.dataset,
            mop.partitions,
            mop.trainable,
            mop.deterministic,
            mop.threads,
        )
