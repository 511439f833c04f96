"""Requests preemptions and reserves the freed capacity for the preemptor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.domain.cluster import PREEMPT_GRACE_S, Preemption, Promise, Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_causes import PreemptionPending
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.scheduler.cycle.cycle_state import CycleState
from hopyard.scheduler.cycle.hold_explanations import HoldDetail
from hopyard.scheduler.cycle.imminent_releases import IMMINENT_WINDOW, ImminentReleases
from hopyard.scheduler.cycle.preemptor import Preemptor
from hopyard.scheduler.cycle.promises import outranks
from hopyard.scheduler.timeline.reservation_preemption import preempt_for_reservations
from hopyard.scheduler.timeline.run_end_estimates import EXPECTED_STOP_S

# gangs for which preemption is tried in one cycle, at least and at most
GANG_SEARCH_BUDGET = (8, 64)
# between these, as many gangs as this budget of nodes and runs allows; later cycles try other gangs
TOTAL_SEARCH_BUDGET = 200_000
VICTIM_SEARCH_COST = 4  # the search for victims costs about as much as this many checks
STOP_WINDOW = timedelta(seconds=EXPECTED_STOP_S + 1)  # a preempted run is expected to have ended by then
RECHECK_INTERVAL = timedelta(seconds=1)
MAX_NAMED_RUNS = 3  # number of runs that a hold names
NO_GANG = GangId("")  # no particular gang


class PreemptionRequests:
    """Valid for one cycle. pending_preemptions: the runs that are being preempted and have not ended yet, by
    the preempting gang. preemptions: the new requests. recheck_times: the times of the next possible
    requests."""

    def __init__(self, state: CycleState) -> None:
        self._state = state
        self.preemptions: list[Preemption] = []
        self.recheck_times: list[datetime] = []
        self.pending_preemptions: dict[GangId, list[Running]] = {}
        for running in sorted(state.cluster_state.stopping.values(), key=lambda run: run.gang.id):
            if running.preempted_for is not None and running.preempted_for in state.pending_gangs:
                self.pending_preemptions.setdefault(running.preempted_for, []).append(running)
        self._preempted_runs: list[Running] = []
        self._searches_done = 0
        snapshot = state.snapshot
        self.search_budget = min(
            max(
                TOTAL_SEARCH_BUDGET // max(len(snapshot.nodes) + len(snapshot.running), 1),
                GANG_SEARCH_BUDGET[0],
            ),
            GANG_SEARCH_BUDGET[1],
        )
        self._lazy_preemptor: Preemptor | None = None
        self._lazy_releases: ImminentReleases | None = None  # runs that end soon without preemption

    def preempt_for_reservations(self) -> None:
        """Preempts runs on nodes of a reservation that begins soon, so that they end in time."""
        state, snapshot = self._state, self._state.snapshot
        if not snapshot.reservations:
            return
        cluster = (state.cluster_state.run_ends, snapshot.nodes, snapshot.queues, state.now)
        requests = preempt_for_reservations(snapshot.reservations, *cluster, grace_s=snapshot.preempt_grace_s)
        if requests.recheck_at is not None:
            self.recheck_times.append(requests.recheck_at)
        runs = [
            running
            for preemption in requests.preemptions
            if (running := state.cluster_state.run_ends.running(preemption.gang)) is not None
        ]
        self.preemptions += requests.preemptions
        self._assume_stopping(runs)
        self._preempted_runs += runs

    @property
    def cycle_number(self) -> int:
        """Numbers the cycles approximately: it selects the items that are examined if the budget does not
        allow all of them. Equal snapshots have equal numbers."""
        return self._state.snapshot.version + int(self._state.now.timestamp())

    def is_due(self, index: int, interval: int) -> bool:
        """Returns whether an item is examined in this cycle. All items are due if the budget allows it;
        otherwise each is due in its turn."""
        return self.search_budget >= GANG_SEARCH_BUDGET[1] or (self.cycle_number + index) % interval == 0

    @property
    def budget_spent(self) -> bool:
        """Returns whether the search budget of this cycle is used up."""
        return self._searches_done >= self.search_budget

    def may_preempt(self, queue: QueueName, priority: int) -> bool:
        """Returns whether any run could be preempted by gangs of this priority in the queue, apart from
        their own evaluators."""
        return self._preemptor.may_preempt(queue, priority)

    def preempt_for(self, gang: Gang) -> bool:
        """Step 6. Returns whether preemptions are requested so that the gang can start; no run is preempted
        twice. An evaluator that follows a run waits for free capacity: otherwise it, its run and a third one
        might preempt each other in turn."""
        if (
            gang.follows is not None
            or gang.id in self.pending_preemptions
            or self.budget_spent
            or not (
                gang.id in self._state.cluster_state.evaluators or self.may_preempt(gang.queue, gang.priority)
            )
        ):
            return False
        self._searches_done += 1
        if self._search_victims(gang):
            return True
        in_s = self._preemptor.next_time_slice_in_s(gang)
        if in_s is not None:
            self.recheck_times.append(self._state.now + max(timedelta(seconds=in_s), RECHECK_INTERVAL))
        return False

    def preempt_evaluators(self) -> None:
        """Preempts evaluators for the gangs that they follow, also for a gang that was skipped because equal
        gangs ahead of it were refused: these would wait for evaluators that wait for the gang."""
        gangs = [
            gang for gang in self._state.cluster_state.evaluated_gangs() if gang.id not in self._state.placed
        ]
        if not gangs:
            return
        # otherwise gangs ahead could use up the budget in every cycle
        self._searches_done = min(self._searches_done, self.search_budget - GANG_SEARCH_BUDGET[0])
        first = self.cycle_number % len(gangs)
        for gang in gangs[first:] + gangs[:first]:
            self.preempt_for(gang)
        if self.budget_spent:
            self.recheck_times.append(self._state.now + RECHECK_INTERVAL)

    def _search_victims(self, gang: Gang) -> bool:
        if self._has_imminent_start(gang) or not self._preemptor.may_help(gang):
            return False
        self._searches_done += VICTIM_SEARCH_COST - 1
        for excluded_nodes in (frozenset[NodeId](), self._state.timeline.committed_nodes()):
            victims = self._preemptor.candidate_victims(gang, excluded_nodes=excluded_nodes)
            if not victims:
                return False
            result = self._preemptor.find_victims(gang, victims, excluded_nodes=excluded_nodes)
            if result is not None and self._request_preemptions(gang, *result):
                return True
        return False

    def _has_imminent_start(self, gang: Gang) -> bool:
        """Returns whether runs that end soon, even at the upper end of their estimates, free enough capacity.
        Then no run is preempted before it is known whether they ended."""
        state = self._state
        if state.timeline.expected_start_at(gang.id) is not None:
            return self._has_guaranteed_start(gang)
        if not self._imminent_releases.has_room_for(_minimum_size(gang)):
            return False
        self._recheck_after(state.now + timedelta(seconds=self._imminent_releases.last_end_s))
        return True

    @property
    def _stop_deadline(self) -> datetime:
        """Returns the time by which runs that are asked to stop now have ended. Until then they are expected
        to end within EXPECTED_STOP_S: an unfinished grace period is no reason to withdraw a promise."""
        return (
            self._state.now
            + timedelta(seconds=max(self._state.snapshot.preempt_grace_s, PREEMPT_GRACE_S))
            + STOP_WINDOW
        )

    @property
    def _imminent_releases(self) -> ImminentReleases:
        if self._lazy_releases is None:
            self._lazy_releases = ImminentReleases(
                self._state.cluster_state.run_ends, self._state.capacity, self._state.quota_usage
            )
            self._state.start_listeners.append(self._lazy_releases.record_start)
        return self._lazy_releases

    def _has_guaranteed_start(self, gang: Gang) -> bool:
        """Returns whether the gang starts soon by its promise."""
        start_at = self._state.timeline.guaranteed_start_at(
            gang.id, self._state.estimate_of(gang), self._state.now + IMMINENT_WINDOW
        )
        if start_at is None or not self._imminent_releases.quota_allows(_minimum_size(gang)):
            return False
        self._recheck_after(start_at)
        return True

    def _recheck_after(self, at: datetime) -> None:
        """Schedules a check after this expected end: a run that does not end causes no event."""
        self.recheck_times.append(max(at, self._state.now) + RECHECK_INTERVAL)

    def hold_for_preemption(self, gang: Gang) -> None:
        """Records that the gang waits for preempted runs."""
        runs = self.pending_preemptions[gang.id]
        names = tuple(f"run:{running.gang.id}" for running in runs[:MAX_NAMED_RUNS])
        self._state.own_holds[gang.id] = HoldDetail.of(PreemptionPending(len(runs)), names)

    def discard_assumed_stops(self) -> None:
        """Discards the assumed ends: the store decides whether the runs are really preempted."""
        for running in self._preempted_runs:
            self._state.cluster_state.run_ends.add(running)

    @property
    def _preemptor(self) -> Preemptor:
        if self._lazy_preemptor is None:
            state = self._state
            self._lazy_preemptor = Preemptor(state.cluster_state, state.capacity, state.quota_usage)
            self._lazy_preemptor.record_preempted(self._preempted_runs)
            for gang in self.pending_preemptions:
                placement = state.timeline.promised_placement(gang)
                if placement is not None:
                    self._lazy_preemptor.record_placement(placement)
            state.start_listeners.append(self._lazy_preemptor.record_placement)
        return self._lazy_preemptor

    def _request_preemptions(self, gang: Gang, runs: list[Running], placement: Placement) -> bool:
        """Requests the preemptions if the gang then starts without delaying a promised gang. Returns whether
        they were requested. A gang that starts as soon without them needs none."""
        state, timeline, estimate = self._state, self._state.timeline, self._state.estimate_of(gang)
        saved_promises = timeline.save_promises([gang.id])
        if (
            saved_promises[gang.id] or timeline.promise(gang, estimate)
        ) is not None and self._has_guaranteed_start(gang):
            timeline.restore_promises(saved_promises)
            return False
        nodes = tuple(sorted({assignment.node for assignment in placement.assignments}))
        others = [
            other
            for other in state.promises.promised_on(nodes)
            if other.id != gang.id and other.id not in self.pending_preemptions
        ]
        saved_promises |= timeline.save_promises(other.id for other in others)
        for other in others:
            timeline.withdraw_promise(other.id)
        self._assume_stopping(runs)
        promise = timeline.promise(
            gang,
            estimate,
            previous=Promise(gang.id, self._stop_deadline, state.now, nodes, has_preempted=True),
        )
        promised_placement, expected_at = (
            timeline.promised_placement(gang.id),
            timeline.expected_start_at(gang.id),
        )
        # promises that count on the end of its own evaluators do not bind it: they end after it
        is_evaluated = all(run.gang.follows == gang.id for run in runs)
        outranked = [
            other
            for other in others
            if is_evaluated or outranks(gang, other, state.quota_usage, state.pending_gangs)
        ]
        if (
            promise is None or promised_placement is None
            or expected_at is None or expected_at > state.now + STOP_WINDOW
            or not self._depends_on(gang, runs) or not self._preserves_promises(others, outranked)
        ):  # fmt: skip
            timeline.update_runs(runs)
            timeline.restore_promises(saved_promises)
            return False
        state.promises.record_preemption(gang.id, promise)
        self.pending_preemptions[gang.id] = runs
        self.preemptions += [
            Preemption(run.attempt, run.gang.id, gang.id, self._preemptor.preemption_cause(run, gang))
            for run in runs
        ]
        self._preempted_runs += runs
        self._preemptor.record_preempted(runs)
        self._preemptor.record_placement(promised_placement)
        self.hold_for_preemption(gang)
        for other in outranked:
            state.promises.drop(other.id)
            state.renew_promise(other)
        return True

    def _depends_on(self, gang: Gang, runs: list[Running]) -> bool:
        """Returns whether the placement of the gang becomes free because these runs stop. If it depends on
        other runs that will probably have ended by then, other gangs may take the capacity that these runs
        release. If those other runs did not end, such gangs would delay this gang, and would be preempted in
        turn."""
        state, timeline = self._state, self._state.timeline
        # Quota is freed wherever these runs are, so the gang may start on other nodes.
        depends = state.quota_usage.refusal(gang) is not None or timeline.awaited_runs(gang.id).issuperset(
            running.gang.id for running in runs
        )
        if (
            depends
            and timeline.guaranteed_start_at(gang.id, state.estimate_of(gang), self._stop_deadline)
            is not None
        ):
            return True
        expected_at = timeline.expected_start_at(gang.id)
        if expected_at is not None:
            self._recheck_after(expected_at)
        return False

    def _preserves_promises(self, gangs: list[Gang], outranked: list[Gang]) -> bool:
        """Returns whether these gangs keep their promises, except the gangs that are outranked."""
        state = self._state
        for gang in gangs:
            previous = state.promises.current[gang.id]
            renewed = (
                None
                if gang in outranked
                else state.timeline.promise(gang, state.estimate_of(gang), previous=previous)
            )
            if gang not in outranked and (renewed is None or renewed.start_at > previous.start_at):
                return False
        return True

    def _assume_stopping(self, runs: Iterable[Running]) -> None:
        self._state.timeline.update_runs(
            [replace(running, stopping=True, preempted_for=NO_GANG) for running in runs]
        )


def _minimum_size(gang: Gang) -> Gang:
    return gang.with_replica_counts([role.required_replicas for role in gang.roles])
