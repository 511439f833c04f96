"""The order in which one turn looks at the gangs that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set

from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Queue
from hopyard.scheduler.cycle.contest import Contest
from hopyard.scheduler.cycle.line import Kind, Line, Shape
from hopyard.scheduler.cycle.queue_walk import QueueWalk
from hopyard.scheduler.fairness.accounts import Accounts


class Walk:
    """Between queues as `Contest` says; in a queue by priority, service class, `Accounts.user_key`,
    submission, id. Both follow what is charged during the turn.

    What is passed over is so for the rest of the turn: whoever was refused once would be again, since room
    only shrinks.
    """

    def __init__(
        self,
        line: Line,
        queues: Mapping[QueueName, Queue],
        leaves: Iterable[QueueName],
        accounts: Accounts,
        held: Callable[[QueueName, str, Shape], bool],
    ) -> None:
        """held: whether those of this queue, user and shape are passed over for now, which may become so
        during the turn."""
        self._over: set[Shape] = set()
        self._leaves = {
            queue: QueueWalk(queue, line.leaves[queue], accounts, self._over, held)
            for queue in leaves
            if queue in line.leaves
        }
        self._full: Set[Shape] = frozenset()
        self._impatient: dict[QueueName, QueueWalk] | None = None
        self._contest = Contest(queues, accounts)
        self._moved: dict[QueueName, None] = dict.fromkeys(self._leaves)

    def head(self) -> Gang | None:
        """Who is next; the same one until something is said of it."""
        while True:
            if self._moved:
                self._contest.enter({queue: self._leaves[queue].head() for queue in self._moved})
                self._moved.clear()
            found = self._contest.first()
            if found is None or self._leaves[found.queue].head() is found:
                return found
            self._moved[found.queue] = None  # it was passed over since

    def charged(self, queue: QueueName) -> None:
        """Somebody in the queue starts, or is promised a start."""
        if queue in self._leaves:
            self._moved[queue] = None

    def step(self, gang: Gang) -> None:
        """The head was decided on its own, unless it has been passed over since; accounts may have
        changed."""
        leaf = self._leaves[gang.queue]
        if leaf.head() is gang:
            leaf.step()
        self._moved[gang.queue] = None

    def pass_kind(self, gang: Gang, kind: Kind) -> None:
        """Look no more at those of this kind of its user in its queue, as long as they are of its rank."""
        leaf = self._leaves[gang.queue]
        if leaf.head() is gang:
            leaf.pass_kind(kind)
        self._moved[gang.queue] = None

    def pass_user(self, gang: Gang, shape: Shape) -> None:
        """Look no more at those of this shape of its user in its queue."""
        self._leaves[gang.queue].pass_user(gang.user, shape)
        self._moved[gang.queue] = None

    def pass_queue(self, queue: QueueName, shape: Shape) -> None:
        """Look no more at those of this shape in this queue."""
        self._leaves[queue].over.add(shape)
        self._moved[queue] = None

    def pass_all(self, shapes: Iterable[Shape]) -> None:
        """Look no more at those of these shapes in any queue."""
        self._over.update(shapes)
        self._moved.update(dict.fromkeys(queue for queue, leaf in self._leaves.items() if leaf.stale()))

    def close(self, queues: Iterable[QueueName]) -> None:
        """Look no more at anybody in these."""
        for queue in queues:
            if queue in self._leaves:
                self._leaves[queue].close()
                self._moved[queue] = None

    def begin_passing(
        self, shapes: Set[Shape], patient: Callable[[list[tuple[QueueName, int]]], Collection[QueueName]]
    ) -> None:
        """From now on, look no more at those of these shapes, in any queue but those that are patient.
        The set may grow: see `grown`. patient: of all queues with the highest priority that waits in each."""
        chosen = frozenset(patient([(queue, leaf.priority) for queue, leaf in self._leaves.items()]))
        self._full, self._impatient = shapes, {}
        for queue in self._leaves.keys() - chosen:
            self._hurry(queue)

    def patient(self, queue: QueueName) -> bool:
        return self._impatient is None or queue not in self._impatient

    def grown(self, shape: Shape) -> None:
        """The set of shapes to pass over grew by this one."""
        for queue, leaf in (self._impatient or {}).items():
            if leaf.shape is shape:
                self._moved[queue] = None

    def hurry(self) -> None:
        """Nobody is patient any more."""
        assert self._impatient is not None
        for queue in self._leaves.keys() - self._impatient.keys():
            self._hurry(queue)

    def _hurry(self, queue: QueueName) -> None:
        assert self._impatient is not None
        leaf = self._impatient[queue] = self._leaves[queue]
        leaf.full = self._full
        if leaf.stale():
            self._moved[queue] = None

    def begin_again(self, queues: Iterable[QueueName]) -> None:
        """In these from the first, as things are charged by now."""
        for queue in queues:
            if queue in self._leaves:
                self._leaves[queue].begin_again()
                self._moved[queue] = None

    def heads(self) -> list[Gang]:
        """Who is next in each queue."""
        return [head for leaf in self._leaves.values() if (head := leaf.head()) is not None]
