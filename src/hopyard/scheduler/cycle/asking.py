"""Asking runs to make room, and keeping what they leave for whom they leave it to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.domain.cluster import PREEMPT_GRACE_S, HoldReason, Preemption, Promise, Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.scheduler.cycle.holds import Verdict
from hopyard.scheduler.cycle.preempt import Preemptor
from hopyard.scheduler.cycle.promises import outranks
from hopyard.scheduler.cycle.scene import Scene
from hopyard.scheduler.cycle.soon import SOON, Soon
from hopyard.scheduler.reasons import plural
from hopyard.scheduler.timeline.future import STOPS_IN_S
from hopyard.scheduler.timeline.leave import leave

# gangs for which it is asked in one turn whether others could make room, at least and at most ...
LOOKS = (8, 64)
EFFORT = 200_000  # ... about as many as make so much with all nodes and runs; later turns ask for others
SEARCH = 4  # looks: to find out who of those that may be asked suffice takes about so many
GONE = timedelta(seconds=STOPS_IN_S + 1)  # whoever was asked to make room is expected to have left by then
AGAIN = timedelta(seconds=1)
NAMED = 3  # runs that a sentence names
NOBODY = GangId("")  # in particular


class Asking:
    """Of one turn. making_room: who was asked, now or in earlier turns, and has not left yet, by whom it is
    for. preemptions: whom to ask now. look_again_at: when there is more to ask."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.preemptions: list[Preemption] = []
        self.look_again_at: list[datetime] = []
        self.making_room: dict[GangId, list[Running]] = {}
        for running in sorted(scene.standing.stopping.values(), key=lambda one: one.gang.id):
            if running.preempted_for is not None and running.preempted_for in scene.line:
                self.making_room.setdefault(running.preempted_for, []).append(running)
        self._asked: list[Running] = []
        self._looks = 0
        snapshot = scene.snapshot
        self.looks = min(
            max(EFFORT // max(len(snapshot.nodes) + len(snapshot.running), 1), LOOKS[0]), LOOKS[1]
        )
        self._lazy: Preemptor | None = None
        self._soon: Soon | None = None  # what ends soon anyway

    def make_way(self) -> None:
        """Runs in the way of a reservation that begins soon are asked to leave in time."""
        scene, snapshot = self._scene, self._scene.snapshot
        if not snapshot.reservations:
            return
        about = (scene.standing.future, snapshot.nodes, snapshot.queues, scene.now)
        found = leave(snapshot.reservations, *about, grace_s=snapshot.preempt_grace_s)
        if found.look_again_at is not None:
            self.look_again_at.append(found.look_again_at)
        runs = [
            running for one in found.ask if (running := scene.standing.future.running(one.gang)) is not None
        ]
        self.preemptions += found.ask
        self._supposed(runs)
        self._asked += runs

    @property
    def round(self) -> int:
        """Counts turns, or about: where not all are looked at in one, it decides who is.
        Equal snapshots have equal ones."""
        return self._scene.snapshot.version + int(self._scene.now.timestamp())

    def in_turn(self, number: int, every: int) -> bool:
        """Whether one of many, by their numbers, is looked at in this turn: all where looks abound, else each
        in its turn."""
        return self.looks >= LOOKS[1] or (self.round + number) % every == 0

    @property
    def tired(self) -> bool:
        """Whether no more is looked for in this turn."""
        return self._looks >= self.looks

    def may(self, queue: QueueName, priority: int) -> bool:
        """Whether there is anybody at all who might have to make room for gangs of this priority in the
        queue."""
        return self._preemptor.may(queue, priority)

    def make_room(self, gang: Gang) -> bool:
        """Step 6. Whether runs are asked to end so that it can start; nobody is where they are already."""
        if gang.id in self.making_room or self.tired or not self.may(gang.queue, gang.priority):
            return False
        self._looks += 1
        if self._find_room(gang):
            return True
        in_s = self._preemptor.slices_in_s(gang)
        if in_s is not None:
            self.look_again_at.append(self._scene.now + max(timedelta(seconds=in_s), AGAIN))
        return False

    def _find_room(self, gang: Gang) -> bool:
        if self._starts_soon(gang) or not self._preemptor.helps(gang):
            return False
        self._looks += SEARCH - 1
        for not_on in (frozenset[NodeId](), self._scene.timeline.spoken_for()):
            victims = self._preemptor.victims(gang, not_on=not_on)
            if not victims:
                return False
            found = self._preemptor.find(gang, victims, not_on=not_on)
            if found is not None and self._ask(gang, *found):
                return True
        return False

    def _starts_soon(self, gang: Gang) -> bool:
        """Whether what ends soon anyway, even where it takes as long as can be expected, makes room enough:
        then nobody needs to be asked, before it is seen whether it did end."""
        scene = self._scene
        if scene.timeline.expected_at(gang.id) is not None:
            return self._surely_soon(gang)
        if not self._ending.holds(_smallest(gang)):
            return False
        self._see_again(scene.now + timedelta(seconds=self._ending.last_s))
        return True

    @property
    def _left_by(self) -> datetime:
        """Whoever is asked now has left by then. As long as they are there, they are expected to leave within
        STOPS_IN_S: until their grace is over that is no reason to take back what was promised."""
        return (
            self._scene.now
            + timedelta(seconds=max(self._scene.snapshot.preempt_grace_s, PREEMPT_GRACE_S))
            + GONE
        )

    @property
    def _ending(self) -> Soon:
        if self._soon is None:
            self._soon = Soon(self._scene.standing.future, self._scene.capacity, self._scene.accounts)
            self._scene.on_start.append(self._soon.starts)
        return self._soon

    def _surely_soon(self, gang: Gang) -> bool:
        """Whether it starts soon where it was promised a start."""
        at = self._scene.timeline.surely_at(gang.id, self._scene.expected(gang), self._scene.now + SOON)
        if at is None or not self._ending.allows(_smallest(gang)):
            return False
        self._see_again(at)
        return True

    def _see_again(self, at: datetime) -> None:
        """By then somebody was expected to have ended, which may not have come true: no end of a run tells of
        that."""
        self.look_again_at.append(max(at, self._scene.now) + AGAIN)

    def wait(self, gang: Gang) -> None:
        """It waits for runs that were asked."""
        runs = self.making_room[gang.id]
        names = tuple(f"run:{running.gang.id}" for running in runs[:NAMED])
        detail = f"{plural(len(runs), 'run')} {'was' if len(runs) == 1 else 'were'} asked to make room for it"
        self._scene.alone[gang.id] = Verdict(HoldReason.PREEMPTING, detail, names)

    def close(self) -> None:
        """What was only supposed is forgotten: whether they are really asked is for the store to say."""
        for running in self._asked:
            self._scene.standing.future.add(running)

    @property
    def _preemptor(self) -> Preemptor:
        if self._lazy is None:
            scene = self._scene
            self._lazy = Preemptor(scene.standing, scene.capacity, scene.accounts)
            self._lazy.leave(self._asked)
            for gang in self.making_room:
                place = scene.timeline.place_of(gang)
                if place is not None:
                    self._lazy.starts(place)
            scene.on_start.append(self._lazy.starts)
        return self._lazy

    def _ask(self, gang: Gang, runs: list[Running], placement: Placement) -> bool:
        """Whether it will start once these have left, in nobody's way; then they are asked.
        What comes about as soon by itself needs no asking."""
        scene, timeline, expected = self._scene, self._scene.timeline, self._scene.expected(gang)
        stays = timeline.stays([gang.id])
        if (stays[gang.id] or timeline.promise(gang, expected)) is not None and self._surely_soon(gang):
            timeline.put_back(stays)
            return False
        nodes = tuple(sorted({assignment.node for assignment in placement.assignments}))
        others = [
            other
            for other in scene.promises.on(nodes)
            if other.id != gang.id and other.id not in self.making_room
        ]
        stays |= timeline.stays(other.id for other in others)
        for other in others:
            timeline.withdraw(other.id)
        self._supposed(runs)
        promise = timeline.promise(
            gang, expected, before=Promise(gang.id, self._left_by, scene.now, nodes, made_room=True)
        )
        place, at = timeline.place_of(gang.id), timeline.expected_at(gang.id)
        above = [other for other in others if outranks(gang, other, scene.accounts, scene.line)]
        if (
            promise is None or place is None or at is None or at > scene.now + GONE
            or not self._needs(gang, runs) or not self._all_kept(others, above)
        ):  # fmt: skip
            timeline.tell(runs)
            timeline.put_back(stays)
            return False
        scene.promises.made_room(gang.id, promise)
        self.making_room[gang.id] = runs
        self.preemptions += [
            Preemption(one.attempt, one.gang.id, gang.id, self._preemptor.why(one, gang)) for one in runs
        ]
        self._asked += runs
        self._preemptor.leave(runs)
        self._preemptor.starts(place)
        self.wait(gang)
        for other in above:
            scene.promises.drop(other.id)
            scene.promise_again(other)
        return True

    def _needs(self, gang: Gang, runs: list[Running]) -> bool:
        """Whether its place becomes free because these leave. Where it counts on others that will probably
        have ended by then, nobody else keeps away from what these would leave: who takes that is in its way
        if they do not end, and would be asked next, in turn."""
        scene, timeline = self._scene, self._scene.timeline
        # What it may use becomes free wherever they are, so its place may be another.
        needed = scene.accounts.refusal(gang) is not None or timeline.counts_on(gang.id).issuperset(
            running.gang.id for running in runs
        )
        if needed and timeline.surely_at(gang.id, scene.expected(gang), self._left_by) is not None:
            return True
        at = timeline.expected_at(gang.id)
        if at is not None:
            self._see_again(at)
        return False

    def _all_kept(self, gangs: list[Gang], but: list[Gang]) -> bool:
        """Whether all these keep what they were promised, but those that are outranked."""
        scene = self._scene
        for gang in gangs:
            before = scene.promises.given[gang.id]
            after = None if gang in but else scene.timeline.promise(gang, scene.expected(gang), before=before)
            if gang not in but and (after is None or after.start_at > before.start_at):
                return False
        return True

    def _supposed(self, runs: Iterable[Running]) -> None:
        self._scene.timeline.tell([replace(running, stopping=True, preempted_for=NOBODY) for running in runs])


def _smallest(gang: Gang) -> Gang:
    return gang.sized([role.fewest for role in gang.roles])
