"""One turn: from what stands to what should happen. The steps are those of docs/designs/0002-scheduler.md,
section 3."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from math import inf

from hopyard.domain.cluster import HoldReason, Plan
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.cycle.asking import AGAIN, Asking
from hopyard.scheduler.cycle.frost import Frost
from hopyard.scheduler.cycle.holds import Holds, Verdict, Verdicts
from hopyard.scheduler.cycle.line import Shape
from hopyard.scheduler.cycle.promises import BY_QUOTA, outranks
from hopyard.scheduler.cycle.scene import Scene
from hopyard.scheduler.cycle.standing import Standing
from hopyard.scheduler.cycle.walk import Walk
from hopyard.scheduler.timeline.blocked import Blocked

FULL = Blocked(HoldReason.NO_CAPACITY, "")
# a queue whose gangs are looked at one by one although there is no room for them gets so many looks
LOOKS_EACH = 4
# in a large cluster, each of those that were promised a start is looked at again in every so many turns
HASTENED = 4
LATER = timedelta(seconds=10)
OVERDUE = timedelta(seconds=2)  # what is over its time is expected to end so soon, all the time
FOR_OTHERS = (HoldReason.BEHIND, HoldReason.RESERVED)  # there is room, and it is for others
NO_ROOM = (HoldReason.NO_CAPACITY, HoldReason.TOPOLOGY, HoldReason.NO_NODES)


class Turn:
    """Used once."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._scene = Scene(standing)
        self._asking = Asking(self._scene)
        self._frost = Frost(self._scene)
        self._order = Walk(
            standing.line,
            standing.snapshot.queues.queues,
            standing.leaves,
            self._scene.timeline.booked,
            self._frost.holds,
        )
        self._scene.timeline.on_booked(self._order.charged)
        self._deferred: dict[GangId, Gang] = {}
        self._passing = self._hurried = False
        # nobody of that shape fits now
        self._full = dict.fromkeys(standing.fullness.now(standing.capacity), FULL)
        # the last one of that shape found a place: the next is not asked about beforehand
        self._lucky: set[Shape] = set()
        self._unpromised: set[Shape] = set()  # nor would if all that runs had ended
        # who would be there so long is in somebody's way
        self._in_way: dict[tuple[Shape, QueueName, str], float] = {}
        self._behind: dict[Shape, Blocked] = {}
        # for what is reserved for them, if they would be there so long
        self._too_long: dict[tuple[Shape, QueueName, str], float] = {}

    def plan(self) -> Plan:
        try:
            self._asking.make_way()
            self._keep_promises()
            self._walk()
            for gang in list(self._deferred.values()):
                self._keep(gang)
        finally:
            self._asking.close()
        scene = self._scene
        after = scene.close()
        self._standing.fullness.found(self._full)
        for placement in scene.placed.values():  # perhaps they do not start
            self._standing.fullness.freed(assignment.node for assignment in placement.assignments)
        behind = {
            shape.key: Verdict(told.reason, told.sentence, told.blocked_by)
            for shape, told in self._behind.items()
        }
        verdicts = Verdicts(
            after, scene.accounts, self._standing.never_fits(), scene.alone, behind, self._frost.verdict
        )
        return Plan(
            scene.snapshot.version,
            tuple(scene.placed.values()),
            Holds(scene.snapshot.pending, scene.placed.keys(), self._standing.ranking, verdicts),
            tuple(self._asking.preemptions),
            tuple(scene.promises.given.values()),
            scene.promises.breaches,
            self._look_again_at(),
        )

    def _look_again_at(self) -> datetime | None:
        """When time alone changes something: a promised start, a reservation, more to ask; what somebody
        counts on should have ended."""
        scene = self._scene
        times = [
            *self._asking.look_again_at,
            *(promise.start_at for promise in scene.promises.given.values()),
        ]
        expected = [
            at for gang in scene.promises.given if (at := scene.timeline.expected_at(gang)) is not None
        ]
        times += [at + AGAIN for at in expected if at > scene.now + OVERDUE]  # else it is late already
        return min((at for at in times if at > scene.now), default=None)

    # Step 2

    def _keep_promises(self) -> None:
        """Whoever finds its promised place free starts there.
        Then the others may look elsewhere, in nobody's way."""
        making_room = self._asking.making_room
        promised = [
            self._scene.gang(promise.gang) for promise in self._scene.promises.in_order(making_room.keys())
        ]
        heads = self._order.heads() if promised else []
        firm = {gang.id for gang in promised if gang.id in making_room or self._scene.promises.firm(gang.id)}
        for gang in promised:
            if gang.id not in firm and any(
                outranks(head, gang, self._scene.accounts, self._scene.line) for head in heads
            ):
                # somebody comes before it: it is looked at when it is its turn
                self._deferred[gang.id] = gang
        self._scene.promises.expect({gang.id: (gang, self._scene.expected(gang)) for gang in promised}, firm)
        # only now that it is known what all of them wait for, so that nobody takes another's
        for gang in promised:
            self._start_there(gang)
        for gang_id in [
            *(gang.id for gang in promised),
            *sorted(making_room.keys() - self._scene.snapshot.promises.keys()),
        ]:
            if gang_id not in self._deferred and gang_id not in self._scene.placed:
                self._keep(self._scene.gang(gang_id))
        self._order.begin_again({gang.queue for gang in promised})

    def _start_there(self, gang: Gang) -> None:
        """It starts where it was promised a start if it is time, in the way of nobody else who was promised
        one."""
        scene, before = self._scene, self._scene.snapshot.promises[gang.id]
        at, place = scene.timeline.expected_at(gang.id), scene.timeline.place_of(gang.id)
        if gang.id in self._deferred or at is None or place is None or at > scene.now:
            return
        if {assignment.node for assignment in place.assignments} <= {*before.nodes}:
            found = self._try_promised(gang)
            if isinstance(found, Placement):
                scene.start(found)
            else:
                scene.promises.expect({gang.id: (gang, scene.expected(gang))})

    def _try_promised(self, gang: Gang) -> Placement | Blocked:
        """Whoever others made room for starts no larger than its guarantee covers: what is beyond could be
        taken back by them."""
        scene = self._scene
        firm = gang.id in scene.snapshot.promises and scene.promises.firm(gang.id)
        return scene.try_now(
            scene.accounts.covered(gang) if firm or gang.id in self._asking.making_room else gang
        )

    def _keep(self, gang: Gang) -> None:
        """It starts if it can; else what it was promised is kept, or reported as broken."""
        scene, shape = self._scene, self._scene.line.shape_of(gang)
        self._deferred.pop(gang.id, None)
        before = scene.snapshot.promises.get(gang.id)
        if self._standing.hopeless(shape):
            scene.promises.drop(gang.id)
            if before is not None:
                scene.promises.broken(before, None)
            return
        blocked = scene.known_blocked(gang) if before is not None else None
        found = blocked or self._try_promised(gang)
        if isinstance(found, Placement):
            scene.start(found)
        elif gang.id in self._asking.making_room:
            if blocked is not None:
                scene.promises.settle(gang, HoldReason.PREEMPTING)
            else:
                scene.promises.give(gang, scene.expected(gang), HoldReason.PREEMPTING)
            self._asking.wait(gang)
        elif blocked is not None:
            scene.keep_promise(gang, blocked)
        else:
            scene.promise(gang, found)

    # Steps 3 to 8

    def _walk(self) -> None:
        """Who was promised a start counts as started: nobody is promised, or given, more than their share on
        top of it."""
        order, scene = self._order, self._scene
        most = scene.snapshot.place_most or sys.maxsize
        while len(scene.placed) < most and (gang := order.head()) is not None:
            if gang.id in self._deferred:
                self._keep(gang)
            if gang.id in scene.placed:
                order.step(gang)
            elif gang.id in scene.promises.given:
                self._hasten(gang)
                order.step(gang)
            elif gang.id in scene.snapshot.promises or gang.id in scene.alone:
                order.step(gang)
            elif self._standing.hopeless(scene.line.shape_of(gang)):
                order.pass_all([scene.line.shape_of(gang)])
            else:
                self._decide(gang)
                self._pass_full()
        if self._asking.tired:
            self._asking.look_again_at.append(scene.now + AGAIN)

    def _hasten(self, gang: Gang) -> None:
        """One that was promised a start may start earlier at the cost of those whom it outranks."""
        told = self._scene.alone.get(gang.id)
        found = None
        if told is not None and told.reason in FOR_OTHERS:
            found = self._go_before(gang, Blocked(told.reason, told.sentence, told.blocked_by))
        if not isinstance(found, Placement) and self._asking.in_turn(
            list(self._scene.promises.given).index(gang.id), HASTENED
        ):
            self._asking.make_room(gang)

    def _decide(self, gang: Gang) -> None:
        scene, shape = self._scene, self._scene.line.shape_of(gang)
        found = self._known(gang, shape) or self._tried(gang, shape)
        if isinstance(found, Blocked) and found.reason in FOR_OTHERS:
            found = self._go_before(gang, found)
        elif isinstance(found, Placement):
            scene.start(found)
        if isinstance(found, Placement):
            self._order.step(gang)
            return
        self._note(gang, shape, found)
        hopeful = not self._passing or self._order.patient(gang.queue)
        if (hopeful and self._asking.make_room(gang)) or self._promise(gang, shape, found):
            self._order.step(gang)
        else:
            self._order.close(self._frost.form(gang))
            self._pass(gang, shape, found)

    def _known(self, gang: Gang, shape: Shape) -> Blocked | None:
        """What must come of it: its queue refuses it, there is no room whoever was promised what, or those
        alike found none."""
        refused = self._scene.accounts.refusal(gang)
        if refused is not None:
            return Blocked(refused.reason, refused.detail, refused.blocked_by)
        limit_s = self._in_way.get((shape, gang.queue, gang.user))
        behind = limit_s is not None and self._scene.expected(gang).high_s >= limit_s
        if (behind or shape not in self._lucky) and self._is_full(shape):
            return FULL
        return self._behind[shape] if behind else None

    def _is_full(self, shape: Shape) -> bool:
        """Whether there is no room for one of this shape, whoever was promised what."""
        if shape not in self._full and self._scene.capacity.place(shape.example) is None:
            self._full[shape] = FULL
            if self._passing:
                self._order.grown(shape)
        return shape in self._full

    def _tried(self, gang: Gang, shape: Shape) -> Placement | Blocked:
        """Whether it may start. Where the last one of its shape could, that there is room was not asked
        beforehand."""
        found = self._scene.try_now(gang, asked=True)
        if isinstance(found, Placement):
            self._lucky.add(shape)
        elif shape in self._lucky:
            self._lucky.discard(shape)
            return FULL if self._is_full(shape) else found
        return found

    def _go_before(self, gang: Gang, found: Blocked) -> Placement | Blocked:
        """It may start, or is promised a start, before those who were promised one."""
        if found.reason is HoldReason.BEHIND:
            again = self._stand_before(gang, found)
            if isinstance(again, Placement) or again.reason not in FOR_OTHERS:
                return again
            found = again
        return self._use_reserved(gang, found)

    def _use_reserved(self, gang: Gang, found: Blocked) -> Placement | Blocked:
        """What is reserved for it now it may use for as long as it takes: who was promised a start there once
        the reservation is over gives way."""
        scene, key = self._scene, (self._scene.line.shape_of(gang), gang.queue, gang.user)
        expected = scene.expected(gang)
        others = [other for other in scene.timeline.unbinding(gang) if other not in self._asking.making_room]
        if not others or expected.high_s >= self._too_long.get(key, inf):
            return found
        place = scene.timeline.try_reserved(gang, expected, others)
        if place is None:
            self._too_long[key] = expected.high_s
            return found
        others = [other for other in others if scene.timeline.expected_at(other) is None]
        for other in others:
            scene.promises.drop(other)
        scene.start(place)
        reservation = scene.timeline.reserved_on(place)
        for other in others:
            scene.promises.give_way(other, gang.id, reservation or "")
            scene.promise_again(scene.gang(other))
        return place

    def _stand_before(self, gang: Gang, found: Blocked) -> Placement | Blocked:
        """Promises to those whom it outranks do not bind it: it is started, or promised a start, before they
        are again. Those for whom runs were asked to leave do bind it, or these would leave in vain."""
        scene = self._scene
        outranked = [
            other for other in scene.promises.outranked(gang) if other.id not in self._asking.making_room
        ]
        if not outranked:
            return found
        for other in outranked:
            scene.promises.drop(other.id)
        again = scene.try_now(gang)
        if isinstance(again, Placement):
            scene.start(again)
        elif gang.id in scene.promises.given or not scene.promises.taken(gang, again.reason):
            scene.promise(gang, again)
        for other in reversed(outranked):
            scene.promise_again(other)
        return again

    def _note(self, gang: Gang, shape: Shape, found: Blocked) -> None:
        """What it means for others that this one was refused."""
        scene = self._scene
        if found.reason not in NO_ROOM and found.reason not in BY_QUOTA:
            key, high_s = (shape, gang.queue, gang.user), scene.expected(gang).high_s
            self._in_way[key] = min(high_s, self._in_way.get(key, high_s))
            self._behind.setdefault(shape, found)

    def _promise(self, gang: Gang, shape: Shape, found: Blocked) -> bool:
        """Step 7."""
        promises = self._scene.promises
        if gang.id in promises.given:
            return True
        if promises.taken(gang, found.reason) or shape in self._unpromised:
            return False
        if not self._scene.promise(gang, found):
            if found.reason in NO_ROOM:
                self._unpromised.add(shape)
            return False
        return True

    def _pass(self, gang: Gang, shape: Shape, found: Blocked) -> None:
        """Step 8: those who share its fate are not looked at."""
        refused = self._scene.accounts.refusal(gang)
        if found.reason is HoldReason.USER_LIMIT or (
            refused is not None and refused.reason is HoldReason.USER_LIMIT
        ):
            self._order.pass_user(gang, shape)
        elif found.reason in NO_ROOM or found.reason is HoldReason.QUOTA:
            self._order.pass_queue(gang.queue, shape)
        else:
            self._order.pass_kind(gang, self._scene.line.kind_of(gang))

    def _pass_full(self) -> None:
        """Those for whom there is no room need no look once all promises are given, where nobody may be
        preempted."""
        if not self._passing and self._scene.promises.exhausted:
            self._passing = True
            for shape in self._scene.line.shapes:
                if shape not in self._full and not self._scene.has_room(shape):
                    self._full[shape] = FULL
            self._order.begin_passing(self._full.keys(), self._patient)
        if self._passing and not self._hurried and self._asking.tired:
            self._hurried = True
            self._order.hurry()

    def _patient(self, queues: list[tuple[QueueName, int]]) -> list[QueueName]:
        """Queues, of these with the highest priority that waits in each, whose gangs may hope that others
        make room. Where they are many, some are looked at in this turn, and others in later ones."""
        scene = self._scene
        hopeful = sorted(queue for queue, priority in queues if self._asking.may(queue, priority))
        count = self._asking.looks // LOOKS_EACH
        if len(hopeful) <= count:
            return hopeful
        self._asking.look_again_at.append(scene.now + LATER)
        first = self._asking.round % len(hopeful)
        return (hopeful + hopeful)[first : first + count]
