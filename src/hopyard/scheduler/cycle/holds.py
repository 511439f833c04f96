"""Why gangs wait, told when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import overload

from hopyard.domain.cluster import Hold, HoldReason
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.cycle.line import Rank, ShapeKey
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.reasons import Sentence, read

Order = tuple[QueueName, bool, Rank, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """As a Hold says it, without a position."""

    reason: HoldReason
    sentence: Sentence
    blocked_by: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        return read(self.sentence)


NEXT = Verdict(HoldReason.BEHIND, "others were first in this turn; it is looked at again in the next")


class Alike:
    """What gangs of one queue, user and shape have in common. never: that they never fit.
    owes: where their user stands."""

    __slots__ = ("_read", "never", "owes", "shared")

    def __init__(self, never: Verdict | None, owes: tuple[float, ...]) -> None:
        self.never, self.owes = never, owes
        self.shared: Verdict | None = None
        self._read: tuple[Sentence, str] | None = None

    def read(self, verdict: Verdict) -> str:
        """Its sentence, which is read once for all that share it."""
        if self._read is None or self._read[0] is not verdict.sentence:
            self._read = verdict.sentence, verdict.detail
        return self._read[1]


class Verdicts:
    """Why each gang waits, as things stood when the turn was over. Nothing of it changes any more.

    alone: of gangs that were looked at for themselves; without a sentence, they wait for the same as those
    alike. in_way: of those that would fit, but in the way of others, by shape: they share one. held: of those
    that stand back for one of their own queue. hopeless: why a gang never fits, or None.
    """

    def __init__(
        self,
        capacity: Capacity,
        accounts: Accounts,
        hopeless: Callable[[Gang], str | None],
        alone: Mapping[GangId, Verdict],
        in_way: Mapping[ShapeKey, Verdict],
        held: Callable[[Gang], Verdict | None],
    ) -> None:
        self.accounts = accounts
        self._capacity, self._hopeless, self._alone, self._in_way, self._held = (
            capacity,
            hopeless,
            alone,
            in_way,
            held,
        )
        self._never: dict[ShapeKey, Verdict | None] = {}
        self._full: dict[tuple[ShapeKey, frozenset[str]], Verdict | None] = {}

    def never(self, gang: Gang) -> Verdict | None:
        key = gang.roles, gang.topology
        if key not in self._never:
            why = self._hopeless(gang)
            self._never[key] = None if why is None else Verdict(HoldReason.NEVER_FITS, why)
        return self._never[key]

    def of(self, gang: Gang, alike: Alike) -> Verdict:
        if alike.never is not None:
            return alike.never
        alone = self._alone.get(gang.id)
        if alone is not None and alone.sentence:
            return alone
        if alike.shared is None:
            alike.shared = self._of_alike(gang)
        return alike.shared if alone is None else replace(alike.shared, blocked_by=alone.blocked_by)

    def alike(self, gang: Gang) -> Alike:
        return Alike(self.never(gang), self.accounts.user_key(gang.queue, gang.user))

    def _of_alike(self, gang: Gang) -> Verdict:
        refused = self.accounts.refusal(gang)
        lent = refused is not None and refused.kept and self.accounts.lender(gang)[0] is not None
        full = self._no_room(gang) if refused is None or lent else None
        if refused is not None and full is None:
            return Verdict(refused.reason, refused.detail, refused.blocked_by)
        return full or self._held(gang) or self._in_way.get((gang.roles, gang.topology), NEXT)

    def _no_room(self, gang: Gang) -> Verdict | None:
        """None where there is room. Whoever is within a guarantee waits for room, too, where others hold what
        they borrowed."""
        key = (gang.roles, gang.topology), self.accounts.closed_models(gang)
        if key not in self._full:
            self._full[key] = self._of_shape(gang, key[1])
        return self._full[key]

    def _of_shape(self, gang: Gang, closed: frozenset[str]) -> Verdict | None:
        """None where there is room."""
        if self._capacity.place(gang, closed_models=closed) is not None:
            return None
        if closed and self._capacity.place(gang) is not None:
            models = ", ".join(sorted(closed))
            return Verdict(
                HoldReason.QUOTA,
                f"what is free are GPUs of which its queue may use no more: {models}",
                (f"queue:{gang.queue}",),
            )
        return Verdict(*self._capacity.why_not(gang))


Waiting = tuple[datetime, GangId, Gang, Alike]
_BY_SUBMISSION = itemgetter(0, 1)


class Holds(Sequence[Hold]):
    """One hold for each gang that waits and was not placed, by queue and position.
    Made when it is looked into.

    ranks: of each gang in its queue.
    """

    def __init__(
        self,
        pending: Sequence[Gang],
        placed: Set[GangId],
        ranking: Callable[[Gang], Rank],
        verdicts: Verdicts,
    ) -> None:
        self._pending, self._placed, self._ranking, self._verdicts = pending, placed, ranking, verdicts
        self._made: tuple[Hold, ...] | None = None

    def __len__(self) -> int:
        return len(self._pending) - len(self._placed)

    @overload
    def __getitem__(self, index: int) -> Hold: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hold]: ...
    def __getitem__(self, index: int | slice) -> Hold | Sequence[Hold]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Hold]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or self._all() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} holds>"

    def _all(self) -> tuple[Hold, ...]:
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def _make(self) -> Iterator[Hold]:
        """Those that never fit come last in their queue."""
        queue, position = None, 0
        groups = self._groups()
        for order in sorted(groups):
            position = position if order[0] == queue else 0
            queue = order[0]
            for _, _, gang, alike in sorted(groups[order], key=_BY_SUBMISSION):
                position += 1
                told = self._verdicts.of(gang, alike)
                yield Hold(gang.id, told.reason, alike.read(told), position, told.blocked_by)

    def _groups(self) -> dict[Order, list[Waiting]]:
        """Those that wait by all that decides their order but when they were submitted, which most of them
        come in already."""
        verdicts, placed, ranking = self._verdicts, self._placed, self._ranking
        groups: dict[Order, list[Waiting]] = {}
        # By identity: to hash a shape takes longer than all else here.
        known: dict[tuple[QueueName, str, int, int], tuple[Alike, dict[Rank, list[Waiting]]]] = {}
        for gang in self._pending:
            if gang.id in placed:
                continue
            key = gang.queue, gang.user, id(gang.roles), id(gang.topology)
            found = known.get(key)
            if found is None:
                found = known[key] = verdicts.alike(gang), {}
            alike, by_rank = found
            rank = ranking(gang)
            group = by_rank.get(rank)
            if group is None:
                order = gang.queue, alike.never is not None, rank, alike.owes
                group = by_rank[rank] = groups.setdefault(order, [])
            group.append((gang.submitted_at, gang.id, gang, alike))
        return groups
