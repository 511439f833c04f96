"""Least attained service in two classes, as Tiresias-L does it."""

from __future__ import annotations

from datetime import datetime, timedelta

from hopyard.domain.cluster import HoldReason, Plan, Preemption, Running, Snapshot
from hopyard.domain.durations import gpus_of
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.policies.followed import Followed, ShapeKey, Tentative, in_order, order, shape_of
from hopyard.scheduler.policies.holds import Holds, Reasons
from hopyard.scheduler.policies.make_room import make_room
from hopyard.scheduler.service import served_s

THRESHOLD = 3250.0  # GPU-seconds, of the published simulator
SCORE = "best-fit"
AGAIN = timedelta(seconds=1)  # no plan is made anew sooner only because time passed

# whether it is of the worse class; if one of a group is refused, all are
Group = tuple[bool, QueueName, str, ShapeKey]


class LeastAttained:
    """Gangs that were served little come first, others after them, each by priority, submission and id; who
    does not fit is overtaken. A gang of the better class preempts runs of the worse one, those that came last
    first, until it fits.

    Service is GPUs times seconds (without GPUs: seconds). threshold: where the worse class begins. promote: a
    gang that waited so many times as long as it was served is in the better class again, against starvation;
    None, as published: none ever is. Source: Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep
    Learning, NSDI'19 (discretised 2D-LAS).
    """

    def __init__(self, threshold: float = THRESHOLD, promote: float | None = None) -> None:
        self._classes = _Classes(threshold, promote)
        self._known: Followed[Group] = Followed(self._classes.group)
        self._over: set[Group] = set()  # of the worse class: room only shrinks until something grew
        self._expected: frozenset[GangId] = frozenset()

    def __call__(self, snapshot: Snapshot) -> Plan:
        known = self._known
        known.follow(snapshot)
        if known.grew or not self._expected <= known.running.keys():
            self._over.clear()
        turn = _Turn(self._classes, known, snapshot.now)
        turn.serve_better()
        turn.serve_worse(self._over)
        placed = turn.now.placed
        self._expected = frozenset(placement.gang.id for placement in placed)
        hold = Holds(snapshot.pending, placed, turn.reasons)
        return Plan(
            snapshot.version, tuple(placed), hold, tuple(turn.preempt), look_again_at=turn.look_again_at()
        )


class _Classes:
    """Who is in which class."""

    def __init__(self, threshold: float, promote: float | None) -> None:
        self._threshold, self.promote = threshold, promote

    def group(self, gang: Gang) -> Group:
        return gang.served_s >= self._enough_s(gang), gang.queue, gang.user, shape_of(gang)

    def worse_in_s(self, running: Running, now: datetime) -> float:
        """In how many seconds a run that goes on is in the worse class; not above 0 where it is now."""
        served = served_s(running, now)
        left_s = self._enough_s(running.gang) - served
        if self.promote is not None:
            left_s = max(left_s, _waited_s(running.gang, served, now) / self.promote - served)
        return left_s

    def promoted_in_s(self, gang: Gang, now: datetime) -> float | None:
        """In how many seconds a gang of the worse class that goes on waiting is in the better one; None:
        never."""
        return (
            None
            if self.promote is None
            else self.promote * gang.served_s - _waited_s(gang, gang.served_s, now)
        )

    def left_s(self, gang: Gang) -> float:
        """For how many seconds it runs in the better class once it starts; not above 0 where it is of the
        worse one."""
        return self._enough_s(gang) - gang.served_s

    def _enough_s(self, gang: Gang) -> float:
        return self._threshold / max(gpus_of(gang), 1)


def _waited_s(gang: Gang, served: float, now: datetime) -> float:
    return (now - gang.submitted_at).total_seconds() - served


class _Turn:
    """now: what is free. then: what is, once all who were asked to leave have left and those for whom they do
    have started."""

    def __init__(self, classes: _Classes, known: Followed[Group], at: datetime) -> None:
        self._classes, self._known, self._at = classes, known, at
        self.now, self._then = Tentative(known, SCORE), known.capacity.copy()
        self.reasons = Reasons(self.now, known.hopeless)
        self.preempt: list[Preemption] = []
        self._changes_s: list[float] = []
        self._worse: list[Running] | None = None
        for running in known.running.values():
            if running.stopping:
                self._then.give_back(running.placement)

    def serve_better(self) -> None:
        """Each starts, or waits for those who leave, or has others leave, or is overtaken."""
        over: set[Group] = set()
        for group, gang in in_order({**self._better(), **self._promoted()}, over):
            if not self._refused(gang) and not self._start(gang) and not self._start_then(gang):
                over.add(group)

    def serve_worse(self, over: set[Group]) -> None:
        """Each starts or is overtaken. over: of these none starts; grows."""
        worse = {group: gangs for group, gangs in self._known.waiting.items() if group[0]}
        started = (
            {placement.gang.id for placement in self.now.placed} | self.reasons.told.keys()
            if self._classes.promote
            else ()
        )
        for group, gang in in_order(worse, over):
            if gang.id not in started and (self._refused(gang) or not self._start(gang)):
                over.add(group)

    def look_again_at(self) -> datetime | None:
        """When somebody comes into another class, of whom that changes anything: whoever starts now, too."""
        if self._worse is not None:
            lefts_s = (self._classes.left_s(placement.gang) for placement in self.now.placed)
            self._changes_s += [left_s for left_s in lefts_s if left_s > 0]
        return self._at + max(timedelta(seconds=min(self._changes_s)), AGAIN) if self._changes_s else None

    def _better(self) -> dict[Group, list[Gang]]:
        return {group: gangs for group, gangs in self._known.waiting.items() if not group[0]}

    def _promoted(self) -> dict[Group, list[Gang]]:
        found: dict[Group, list[Gang]] = {}
        for group, gangs in self._known.waiting.items() if self._classes.promote is not None else ():
            for gang in gangs if group[0] else ():
                in_s = self._classes.promoted_in_s(gang, self._at)
                if in_s is not None and in_s <= 0:
                    found.setdefault(group, []).append(gang)
                elif in_s is not None:
                    self._changes_s.append(in_s)
        return found

    def _refused(self, gang: Gang) -> bool:
        return self._known.hopeless(gang) is not None or self.now.accounts.refusal(gang) is not None

    def _start(self, gang: Gang) -> bool:
        found = self.now.start(gang)
        if found is not None:
            self._then.take(found)
        return found is not None

    def _start_then(self, gang: Gang) -> bool:
        """Once others have left. Nobody else gets what is kept for it."""
        accounts = self.now.accounts
        found = self._then.place(gang, score=SCORE, closed_models=accounts.closed_models(gang))
        if found is None:
            room = make_room(gang, self._then, accounts, self._victims(), SCORE)
            if room is None:
                return False
            found, leaving = room
            for running in leaving:
                self._ask(running, gang)
        self._then.take(found)
        self.now.capacity.take(found)
        accounts.charge(found)
        self.reasons.told[gang.id] = HoldReason.PREEMPTING, "runs that were served more make room for it"
        return True

    def _ask(self, running: Running, gang: Gang) -> None:
        self._victims().remove(running)
        self._then.give_back(running.placement)
        why = f"it was served more than {gang.id}, which waits for its place"
        self.preempt.append(Preemption(running.attempt, running.gang.id, gang.id, why))

    def _victims(self) -> list[Running]:
        """Runs of the worse class, those that came last first.
        Whoever asks has somebody of the better class wait."""
        if self._worse is None:
            self._worse = []
            for running in self._known.running.values():
                in_s = self._classes.worse_in_s(running, self._at)
                if running.stopping or not running.gang.preemptible:
                    continue
                if in_s <= 0:
                    self._worse.append(running)
                else:
                    self._changes_s.append(in_s)
            self._worse.sort(key=lambda running: order(running.gang), reverse=True)
        return self._worse
