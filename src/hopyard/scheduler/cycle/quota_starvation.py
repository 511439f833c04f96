"""Prevents starvation inside a queue: later gangs are held back when a gang has waited long enough for
quota."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from hopyard.domain.gang import Gang
from hopyard.domain.hold_causes import QuotaStarvationHold
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import QueueName
from hopyard.scheduler.cycle.cycle_state import CycleState
from hopyard.scheduler.cycle.hold_explanations import HoldDetail
from hopyard.scheduler.cycle.pending_gangs import GangClass
from hopyard.scheduler.duration_estimates import DurationEstimate

# smaller gangs may take freed quota for at most this long
STARVATION_TIMEOUT = timedelta(minutes=5)


def starvation_timeout(estimate: DurationEstimate) -> timedelta:
    """Returns how long a gang waits before later gangs are held back. A short run does not wait for minutes
    while smaller gangs keep taking its quota."""
    return min(STARVATION_TIMEOUT, timedelta(seconds=estimate.high_s))


@dataclass(frozen=True, slots=True)
class _HoldBackRule:
    """The gangs that are held back: those of one user if the user's limit is reached, else all; only GPU
    gangs, or all."""

    user: str | None
    gpus_only: bool
    hold_detail: HoldDetail


class QuotaStarvationGuard:
    """Valid for one cycle. A gang waits because its queue, an ancestor, or its user is at a limit. Once it
    has waited as long as its estimated duration, or for STARVATION_TIMEOUT, later gangs that need the same
    quota are held back. Freed quota then adds up for the waiting gang.

    No promise is needed: gangs of other queues do not compete for this quota.
    """

    def __init__(self, state: CycleState) -> None:
        self._state = state
        self._rules: dict[QueueName, list[_HoldBackRule]] = {}

    def hold_back_followers(self, gang: Gang) -> Sequence[QueueName]:
        """Decides whether this pending gang holds others back. Returns the queues in which all gangs are held
        back from now on."""
        state = self._state
        if (
            state.now - gang.submitted_at < starvation_timeout(state.estimate_of(gang))
            or state.pending_gangs.rank_of(gang)[1]
        ):
            return ()
        refused = state.quota_usage.refusal(gang)
        if refused is None or state.cluster_state.never_admissible(gang):
            return ()
        user = gang.user if refused.reason is HoldReason.USER_LIMIT else None
        detail = HoldDetail.of(QuotaStarvationHold(gang.id, refused.queue, user), (f"run:{gang.id}",))
        rule = _HoldBackRule(user, state.pending_gangs.class_of(gang).requests_gpus, detail)
        leaves = state.cluster_state.leaf_queues_below.get(refused.queue, ())
        for leaf in leaves:
            self._rules.setdefault(leaf, []).append(rule)
        return leaves if user is None and not rule.gpus_only else ()

    def is_held_back(self, queue: QueueName, user: str, gang_class: GangClass) -> bool:
        return queue in self._rules and self._matching_rule(queue, user, gang_class.requests_gpus) is not None

    def hold_detail(self, gang: Gang) -> HoldDetail | None:
        """Returns why the gang is held back, or None."""
        requests_gpus = any(role.resources.gpus or role.resources.is_gpu_share for role in gang.roles)
        rule = self._matching_rule(gang.queue, gang.user, requests_gpus)
        return None if rule is None else rule.hold_detail

    def _matching_rule(self, queue: QueueName, user: str, requests_gpus: bool) -> _HoldBackRule | None:
        for rule in self._rules.get(queue, ()):
            if rule.user in (None, user) and (requests_gpus or not rule.gpus_only):
                return rule
        return None
