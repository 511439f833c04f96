"""What the steps of one turn share: the state as it will be after what was decided so far."""

from __future__ import annotations

from collections.abc import Callable

from hopyard.domain.cluster import HoldReason
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.cycle.holds import Verdict
from hopyard.scheduler.cycle.line import Shape
from hopyard.scheduler.cycle.promises import Promises
from hopyard.scheduler.cycle.standing import Standing
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.predict import Expected, expect
from hopyard.scheduler.timeline.blocked import Blocked
from hopyard.scheduler.timeline.future import Alike, alike
from hopyard.scheduler.timeline.timeline import Timeline


class Scene:
    """placed: what starts. alone: why gangs wait that were looked at for themselves.
    promised: who binds whom."""

    def __init__(self, standing: Standing) -> None:
        self.standing, self.snapshot, self.line = standing, standing.snapshot, standing.line
        self.now = self.snapshot.now
        # itself: it knows by now which nodes are best; `close` gives back what starts
        self.capacity = standing.capacity
        self.accounts = standing.accounts.copy()
        self.timeline = Timeline(
            self.capacity,
            self.accounts,
            standing.future,
            self.snapshot.reservations,
            self.now,
            self.snapshot.queues,
            self.snapshot.promises.values(),
        )
        self.promises = Promises(
            self.snapshot.promises,
            self.timeline,
            self.accounts,
            self.line,
            self.snapshot.queues.queues,
            self.now,
        )
        self.placed: dict[GangId, Placement] = {}
        self.alone: dict[GangId, Verdict] = {}
        self.on_start: list[Callable[[Placement], None]] = []
        self._expected: dict[tuple[Alike, float | None, float], Expected] = {}

    def close(self) -> Capacity:
        """What is free once all that starts has started; the standing capacity is as it was."""
        after = self.capacity.copy()
        self.capacity.give_back_all(self.placed.values())
        return after

    def gang(self, gang: GangId) -> Gang:
        """One that waits."""
        found = self.line.find(gang)
        assert found is not None
        return found

    def expected(self, gang: Gang) -> Expected:
        """How long it would run."""
        key = alike(gang), gang.time_limit_s, gang.served_s
        found = self._expected.get(key)
        if found is None:
            found = self._expected[key] = expect(gang, self.snapshot.durations)
        return found

    def try_now(self, gang: Gang, *, asked: bool = False) -> Placement | Blocked:
        """asked: its queue does not refuse it."""
        before = self.snapshot.promises.get(gang.id)
        prefer = frozenset(before.nodes) if before is not None else frozenset()
        return self.timeline.try_now(
            gang, self.expected(self.gang(gang.id)), prefer=prefer, explain=False, asked=asked
        )

    def start(self, placement: Placement) -> None:
        gang = placement.gang.id
        self.promises.drop(gang)
        self.timeline.start(placement, self.expected(self.gang(gang)))
        self.placed[gang] = placement
        self.alone.pop(gang, None)
        for told in self.on_start:
            told(placement)

    def promise(self, gang: Gang, found: Blocked) -> bool:
        """Whether it is promised a start, or what it was promised is kept."""
        if self.promises.give(gang, self.expected(gang), found.reason) is None:
            return False
        self.waits(gang, found)
        return True

    def has_room(self, shape: Shape) -> bool:
        """Whether there is room for a gang of this shape, whoever was promised what.
        Of several roles it is found only where one is placed as the gang would be."""
        gang = shape.example
        if len(gang.roles) > 1:
            return self.capacity.place(gang) is not None
        return (
            self.capacity.place(gang.sized([role.fewest for role in gang.roles]), score="first-fit")
            is not None
        )

    def keep_promise(self, gang: Gang, found: Blocked) -> bool:
        """As `promise`, with what was expected when the turn began."""
        if self.promises.settle(gang, found.reason) is None:
            return False
        self.waits(gang, found)
        return True

    def known_blocked(self, gang: Gang) -> Blocked | None:
        """Why it may not start now, where that is quick to say: its queue, or too little room whoever was
        promised what."""
        refused = self.accounts.refusal(gang)
        if refused is not None:
            return Blocked(refused.reason, refused.detail, refused.blocked_by)
        if self.capacity.place(gang) is None:
            return Blocked(self.capacity.reason(gang), "")
        return None

    def waits(self, gang: Gang, found: Blocked) -> None:
        """It waits for what it was promised."""
        self.alone[gang.id] = Verdict(
            found.reason, found.sentence, found.blocked_by or self.timeline.waits_for(gang.id)
        )

    def promise_again(self, gang: Gang) -> None:
        """It had to stand back; as well as can be now."""
        told = self.alone.pop(gang.id, None)
        expected = self.expected(gang)
        if (
            self.promises.give(gang, expected, told.reason if told else HoldReason.BEHIND) is not None
            and told is not None
        ):
            self.alone[gang.id] = told
