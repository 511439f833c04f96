"""Why gangs wait, made when somebody looks: a policy to compare with plans many thousand times, and nobody
reads most of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from hopyard.domain.cluster import Hold, HoldReason
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.policies.followed import ShapeKey, Tentative, order, shape_of
from hopyard.scheduler.reasons import plural

Why = tuple[HoldReason, str]


class Holds(Sequence[Hold]):
    """One hold for each gang that waits and was not placed, in order; those that never fit come last."""

    def __init__(self, pending: Sequence[Gang], placed: Iterable[Placement], reasons: Reasons) -> None:
        self._pending, self._reasons = pending, reasons
        self._placed = {placement.gang.id for placement in placed}
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
        return self._all() == tuple(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} holds>"

    def _all(self) -> tuple[Hold, ...]:
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def _make(self) -> Iterator[Hold]:
        waiting = [
            (gang, self._reasons.hopeless(gang)) for gang in self._pending if gang.id not in self._placed
        ]
        waiting.sort(key=lambda pair: (pair[1] is not None, order(pair[0])))
        for ahead, (gang, never) in enumerate(waiting):
            reason, detail = (
                (HoldReason.NEVER_FITS, never) if never is not None else self._reasons.of(gang, ahead)
            )
            yield Hold(gang.id, reason, detail, ahead + 1)


class Reasons:
    """As things stood when the plan was made, with `left` free.

    hopeless: why a gang never fits, or None. told: of those of whom the policy says it itself. blocked: who
    was refused a place, and what was free for it then; with `strict` all others wait because of these, and
    not for a place of their own.
    """

    def __init__(
        self, left: Tentative, hopeless: Callable[[Gang], str | None], *, strict: bool = False
    ) -> None:
        self.hopeless, self._left, self._strict = hopeless, left, strict
        self.told: dict[GangId, Why] = {}
        self.blocked: dict[GangId, Capacity] = {}
        self._full: dict[tuple[ShapeKey, frozenset[str]], Why | None] = {}

    def of(self, gang: Gang, ahead: int) -> Why:
        if gang.id in self.told:
            return self.told[gang.id]
        if gang.id in self.blocked:
            return self.blocked[gang.id].why_not(gang)
        refused = self._left.accounts.refusal(gang)
        if refused is not None:
            return refused.reason, refused.detail
        key = shape_of(gang), self._left.accounts.closed_models(gang)
        if key not in self._full:
            behind = self._strict or self._left.find(gang) is not None
            self._full[key] = None if behind else self._left.capacity.why_not(gang)
        return self._full[key] or (HoldReason.BEHIND, f"{plural(ahead, 'run')} ahead of it")
