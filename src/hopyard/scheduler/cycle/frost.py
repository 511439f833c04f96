"""Who waits long for what its queue or user may use is not overtaken by its own for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from hopyard.domain.cluster import HoldReason
from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.scheduler.cycle.holds import Verdict
from hopyard.scheduler.cycle.line import Shape
from hopyard.scheduler.cycle.scene import Scene
from hopyard.scheduler.predict import Expected

PATIENCE = timedelta(minutes=5)  # so long at most smaller ones may go on taking what becomes free of a limit


def patience(expected: Expected) -> timedelta:
    """Who asks for seconds is not to wait for minutes while smaller ones go on taking what it waits for."""
    return min(PATIENCE, timedelta(seconds=expected.high_s))


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What stands back: gangs of one user, where it is the user's limit, or of all; that ask for GPUs, or
    all."""

    user: str | None
    gpus_only: bool
    verdict: Verdict


class Frost:
    """Of one turn. A gang waits because its queue, one above it, or its user may use no more: once it has
    waited as long as it is expected to run, or for PATIENCE, those that come after it and would use the same
    stand back, so that what becomes free adds up to what it needs.

    No promise is needed for that: nobody outside of the queue competes for what it may use.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._sheets: dict[QueueName, list[_Sheet]] = {}

    def form(self, gang: Gang) -> Sequence[QueueName]:
        """The gang waits; whether others are to stand back for it is seen here.
        Queues in which everybody does from now on."""
        scene = self._scene
        if scene.now - gang.submitted_at < patience(scene.expected(gang)) or scene.line.rank_of(gang)[1]:
            return ()
        refused = scene.accounts.refusal(gang)
        if refused is None or scene.standing.never_allowed(gang):
            return ()
        user = gang.user if refused.reason is HoldReason.USER_LIMIT else None
        whose = (
            f"{gang.user or 'its user'} in queue {refused.queue}"
            if user is not None
            else f"queue {refused.queue}"
        )
        told = Verdict(
            HoldReason.BEHIND, f"run {gang.id} waits longer for what {whose} may use", (f"run:{gang.id}",)
        )
        sheet = _Sheet(user, scene.line.shape_of(gang).asks_gpus, told)
        leaves = scene.standing.leaves_below.get(refused.queue, ())
        for leaf in leaves:
            self._sheets.setdefault(leaf, []).append(sheet)
        return leaves if user is None and not sheet.gpus_only else ()

    def holds(self, queue: QueueName, user: str, shape: Shape) -> bool:
        return queue in self._sheets and self._over(queue, user, shape.asks_gpus) is not None

    def verdict(self, gang: Gang) -> Verdict | None:
        """Why it stands back, None where it does not."""
        asks_gpus = any(role.resources.gpus or role.resources.shares_gpu for role in gang.roles)
        sheet = self._over(gang.queue, gang.user, asks_gpus)
        return None if sheet is None else sheet.verdict

    def _over(self, queue: QueueName, user: str, asks_gpus: bool) -> _Sheet | None:
        for sheet in self._sheets.get(queue, ()):
            if sheet.user in (None, user) and (asks_gpus or not sheet.gpus_only):
                return sheet
        return None
