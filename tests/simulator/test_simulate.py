from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Hold, Plan, Preemption, Snapshot
from hopyard.domain.gang import Assignment, Placement
from hopyard.domain.hold_causes import GpuModelsClosed, PreemptionPending, QueueBacklog
from hopyard.domain.ids import NodeId, QueueName, ReservationId
from hopyard.domain.preemption_causes import ServicePreemption
from hopyard.domain.queue import CPU, GPU, MEMORY, SINGLE_QUEUE_TREE
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.domain.run import RoleSpec, RunSpec
from hopyard.errors import HopyardError, SpecError
from hopyard.scheduler.policies.registry import POLICIES
from hopyard.simulator.report import SimulationReport
from hopyard.simulator.settings import SimulatedCluster, TimeCosts
from hopyard.simulator.workload import WorkloadRun
from tests.simulator.workloads import GIB, cluster, run_simulation, workload, workload_run

WHOLE_SECONDS = st.integers(0, 5_000).map(float)


@st.composite
def workloads(draw: st.DrawFn, *, most_gpus: int = 16) -> list[WorkloadRun]:
    shapes = [(1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (3, 1), (1, 5)]
    runs = []
    for _ in range(draw(st.integers(1, 14))):
        gpus, replicas = draw(
            st.sampled_from([shape for shape in shapes if shape[0] * shape[1] <= most_gpus])
        )
        at_s, duration_s = draw(WHOLE_SECONDS), draw(st.integers(1, 20_000).map(float))
        priority = draw(st.sampled_from([None, None, 10, 90]))
        runs.append(
            workload_run(
                at_s, duration_s, gpus, replicas=replicas, user=draw(st.sampled_from("ab")), priority=priority
            )
        )
    return runs


def gpu_seconds(runs: Sequence[WorkloadRun]) -> float:
    return sum(
        run.duration_s * role.replicas * role.resources.gpus for run in runs for role in run.spec.roles
    )


class TestLaws:
    @given(workloads(), st.sampled_from(sorted(POLICIES)))
    @settings(max_examples=40, deadline=None)
    def test_every_run_ends_once_and_gpu_time_adds_up(self, runs: list[WorkloadRun], policy: str) -> None:
        """The cost of preemptions is reported as lost time; no work is done twice or omitted."""
        costs = TimeCosts(start_s=7, save_s=11, restore_s=13)
        report = run_simulation(runs, cluster(2), policy, costs=costs)
        starts = 7 * sum(role.replicas * role.resources.gpus for run in runs for role in run.spec.roles)
        again = report.losses.gpu_seconds
        assert (report.ended, report.unfinished, report.refused) == (len(runs), {}, {})
        assert report.completion.count == len(runs)
        if not report.losses.preemptions:
            assert again == 0
            assert report.gpu_hours * 3600 == pytest.approx(gpu_seconds(runs) + starts, abs=1e-3)
        else:
            assert gpu_seconds(runs) < report.gpu_hours * 3600 <= gpu_seconds(runs) + starts + again + 1e-3
        assert report.promises.late == 0, "a promise was broken without a breach"

    @given(workloads(), st.sampled_from(sorted(POLICIES)), st.integers(0, 3))
    @settings(max_examples=15, deadline=None)
    def test_equal_seeds_give_equal_reports(self, runs: list[WorkloadRun], policy: str, seed: int) -> None:
        first, again = (
            run_simulation(
                runs,
                cluster(2),
                policy,
                seed=seed,
                mtbf_s=20_000.0,
                repair_s=500.0,
                costs=TimeCosts(checkpoint_every_s=900),
            )
            for _ in range(2)
        )
        assert first == again
        assert first.ended == len(runs)

    @given(st.lists(st.tuples(WHOLE_SECONDS, st.integers(1, 3_000).map(float)), min_size=1, max_size=25))
    @settings(max_examples=30, deadline=None)
    def test_fifo_on_one_server_matches_lindleys_recursion(self, pairs: list[tuple[float, float]]) -> None:
        """A run waits for the remaining work at its arrival (Lindley's recursion, 1952)."""
        report = run_simulation([workload_run(at_s, duration_s, 8) for at_s, duration_s in pairs])
        free_at = 0.0
        waits = []
        for at_s, duration_s in sorted(pairs, key=lambda pair: pair[0]):
            began = max(at_s, free_at)
            waits.append(began - at_s)
            free_at = began + duration_s
        assert list(report.waits) == pytest.approx(sorted(waits))
        assert report.makespan_s == pytest.approx(free_at - min(at_s for at_s, _ in pairs))

    @given(
        st.lists(st.tuples(WHOLE_SECONDS, st.integers(1, 3_000).map(float)), min_size=1, max_size=25),
        st.integers(1, 8),
    )
    @settings(max_examples=20, deadline=None)
    def test_fifo_on_several_servers_matches_a_direct_computation(
        self, pairs: list[tuple[float, float]], gpus: int
    ) -> None:
        report = run_simulation(
            [workload_run(at_s, duration_s) for at_s, duration_s in pairs], cluster(1, gpus=gpus)
        )
        free = [0.0] * gpus
        waits = []
        for at_s, duration_s in sorted(pairs, key=lambda pair: pair[0]):
            began = max(at_s, heapq.heappop(free))
            waits.append(began - at_s)
            heapq.heappush(free, began + duration_s)
        assert list(report.waits) == pytest.approx(sorted(waits))

    @given(workloads(), st.sampled_from(["fifo", "hopyard"]))
    @settings(max_examples=3, deadline=None, phases=[Phase.generate])
    def test_memory_and_sql_stores_give_equal_reports(self, runs: list[WorkloadRun], policy: str) -> None:
        costs = TimeCosts(start_s=5, save_s=5)
        assert run_simulation(runs, cluster(2), policy, costs=costs) == run_simulation(
            runs, cluster(2), policy, costs=costs, store="sqlite"
        )


def _cpus(at_s: float, cpus: int, queue: str, memory: int = 0) -> WorkloadRun:
    """A run of one hour without GPUs."""
    role = RoleSpec(("train.py",), resources=Resources(cpus * 1000, memory))
    return WorkloadRun(RunSpec("p", (role,), queue=QueueName(queue)), at_s, 3600.0)


def waits(report: SimulationReport) -> list[float]:
    return [round(wait, 6) for wait in report.waits]


class TestKnownCases:
    """One node with 8 GPUs."""

    BLOCKED = (workload_run(0, 100, 6), workload_run(1, 50, 8), workload_run(2, 10, 2))

    def test_fifo_does_not_backfill(self) -> None:
        report = run_simulation(self.BLOCKED, policy="fifo")
        assert waits(report) == [0, 99, 148]
        assert report.makespan_s == 160

    def test_best_fit_lets_fitting_runs_overtake(self) -> None:
        report = run_simulation(self.BLOCKED, policy="best-fit")
        assert waits(report) == [0, 0, 99]
        assert report.makespan_s == 150
        assert report.gpu_use == pytest.approx((600 + 400 + 20) / (8 * 150))

    def test_default_policy_backfills_runs_that_end_in_time(self) -> None:
        """With time limits the short run ends before the large one could start, so it delays no run."""
        limited = [
            workload_run(0, 100, 6, time_limit_s=100),
            workload_run(1, 50, 8, time_limit_s=50),
            workload_run(2, 10, 2, time_limit_s=20),
        ]
        report = run_simulation(limited, policy="hopyard", know_time_limits=True)
        assert waits(report) == [0, 0, 99]
        assert (report.promises.given, report.promises.kept, report.promises.broken) == (1, 1, {})

    def test_las_runs_the_least_served_first(self) -> None:
        """The long run has used more than its first slice when the short one arrives: it is preempted and
        resumes later."""
        report = run_simulation(
            [workload_run(0, 200_000, 8), workload_run(100_000, 100, 8)],
            policy="las",
            costs=TimeCosts(save_s=10, restore_s=20),
        )
        assert report.losses.preemptions == 1
        assert report.losses.seconds == 30
        assert report.ended == 2
        assert report.wait.most < 50_000
        assert report.makespan_s == pytest.approx(200_000 + 100 + 10 + 20, abs=1)

    def test_capacity_policy_gives_each_queue_its_share(self) -> None:
        runs = [workload_run(at, 1000, 4, queue="long") for at in range(6)] + [
            workload_run(10, 1000, 4, queue="short")
        ]
        first_come, by_queue = run_simulation(runs, policy="fifo"), run_simulation(runs, policy="capacity")
        wait = {
            report.policy: {queue.name: queue.wait.mean for queue in report.queues}
            for report in (first_come, by_queue)
        }
        assert wait["fifo"]["short"] == 2990
        assert wait["capacity"]["short"] == 990
        assert by_queue.jain is not None and first_come.jain is not None
        assert by_queue.jain > first_come.jain

    def test_fgd_keeps_complete_nodes_free(self) -> None:
        """Two runs of 4 GPUs share one node, so that the run of 8 GPUs gets the other."""
        report = run_simulation(
            [workload_run(0, 100, 4), workload_run(1, 100, 4), workload_run(2, 100, 8)], cluster(2), "fgd"
        )
        assert waits(report) == [0, 0, 0]


class TestReport:
    def test_report_has_utilisation_waits_and_classes(self) -> None:
        report = run_simulation(
            [workload_run(0, 3600, 8), workload_run(0, 3600, 4), workload_run(0, 3600, 4)]
        )
        assert (report.makespan_s, report.gpu_use, report.gpu_hours) == (7200, 1.0, 16.0)
        assert report.cpu_use == pytest.approx((1 + 2) / 2 / 64)
        assert (report.wait.mean, report.wait.median, report.wait.most) == (2400, 3600, 3600)
        assert report.completion.mean == 6000
        assert [(group.name, group.completion.count) for group in report.groups] == [
            ("2-4 GPUs", 2),
            ("5-8 GPUs", 1),
        ]
        assert report.timing.turns > 0

    def test_fragmentation_over_time(self) -> None:
        """4 of 8 GPUs are free for the half of the time, and half of the runs need 8."""
        report = run_simulation([workload_run(0, 6000, 4), workload_run(6000, 6000, 8)])
        assert report.fragmentation == pytest.approx(0.25, abs=0.01)

    def test_runs_that_never_fit_are_refused_and_listed(self) -> None:
        report = run_simulation([workload_run(0, 10, 9), workload_run(0, 10, 1)])
        assert (report.runs, report.ended) == (2, 1)
        assert list(report.refused.values()) == [1]
        assert [run.row for run in report.too_large] == ["run 1"]
        assert "needs 9 GPUs on one node" in report.too_large[0].why

    def test_until_s_ends_the_simulation(self) -> None:
        report = run_simulation([workload_run(0, 1000, 8), workload_run(5, 1000, 8)], until_s=500.0)
        assert report.ended == 0
        assert report.unfinished["running"] == 1
        assert sum(report.unfinished.values()) == 2
        assert (report.makespan_s, report.gpu_use) == (500, 1.0)

    def test_report_is_json(self) -> None:
        import json

        report = run_simulation([workload_run(0, 10), workload_run(1, 10)])
        output = json.loads(json.dumps(report.to_json()))
        assert (output["ended"], output["completion"]["mean"], output["queues"][0]["ratio"]) == (2, 10.0, 1.0)


class TestFairness:
    """The resource in which a queue is measured."""

    UNFAIR = (*(_cpus(0, 8, "a") for _ in range(20)), _cpus(1, 8, "b"))

    @pytest.mark.parametrize("gpus", [0, 2])
    def test_runs_without_gpus_are_measured_in_cores(self, gpus: int) -> None:
        report = run_simulation(self.UNFAIR, cluster(gpus=gpus, cpus=8))
        assert [(queue.name, queue.resource, queue.runs) for queue in report.queues] == [
            ("a", CPU, 20),
            ("b", CPU, 1),
        ]
        # Both want all 8 cores: a has them for 20 hours and is entitled to the half, b has them only after
        # that.
        assert [queue.ratio for queue in report.queues] == [
            pytest.approx(2, abs=0.01),
            pytest.approx(1 / 11, abs=0.01),
        ]
        assert report.jain == pytest.approx(0.545, abs=0.001)

    def test_queue_is_measured_in_its_dominant_resource(self) -> None:
        runs = [
            workload_run(0, 100, 1, queue="gpus"),
            _cpus(0, 32, "cores"),
            _cpus(0, 1, "memory", 256 * GIB),
            _cpus(0, 0, "nothing"),
        ]
        result = {queue.name: queue for queue in run_simulation(runs).queues}
        assert {name: queue.resource for name, queue in result.items()} == {
            "gpus": GPU,
            "cores": CPU,
            "memory": MEMORY,
            "nothing": "",
        }
        hours = {name: round(queue.received, 3) for name, queue in result.items()}
        assert hours == {"gpus": round(100 / 3600, 3), "cores": 32, "memory": 256, "nothing": 0}
        assert [result[name].ratio for name in ("gpus", "cores", "memory")] == [pytest.approx(1)] * 3
        assert result["nothing"].ratio is None

    def test_cores_do_not_count_if_all_runs_request_gpus(self) -> None:
        """Its only run has all cores and one of 8 GPUs."""
        all_cores = replace(
            _cpus(0, 64, "q"), spec=RunSpec("p", (RoleSpec(("t",), resources=Resources(64_000, 0, 1)),))
        )
        assert [queue.resource for queue in run_simulation([all_cores]).queues] == [GPU]
        both = [replace(all_cores, duration_s=36.0), _cpus(0, 8, "default")]
        assert [queue.resource for queue in run_simulation(both).queues] == [CPU]

    def test_fairness_is_undefined_without_any_usage(self) -> None:
        def idle_policy(snapshot: Snapshot) -> Plan:
            return Plan(
                snapshot.version,
                (),
                tuple(Hold(gang.id, GpuModelsClosed(()), 1) for gang in snapshot.pending),
            )

        report = run_simulation(self.UNFAIR, policy=idle_policy)
        assert report.jain is None
        assert [queue.ratio for queue in report.queues] == [0, 0]
        assert run_simulation([_cpus(0, 0, "a")]).to_json()["queues"][0]["ratio"] is None


class TestNodeLosses:
    def test_lost_node_loses_unsaved_work(self) -> None:
        """A node is lost at some time: the run restarts from the beginning or from its last checkpoint."""
        without, saved = (
            run_simulation(
                [workload_run(0, 100_000, 8)],
                costs=TimeCosts(checkpoint_every_s=every),
                mtbf_s=60_000.0,
                repair_s=100.0,
                seed=5,
            )
            for every in (0.0, 1000.0)
        )
        for report in (without, saved):
            assert report.ended == 1
            assert report.losses.killed == report.losses.node_losses > 0
        assert saved.losses.seconds <= 1000 * saved.losses.killed
        assert without.losses.seconds > saved.losses.seconds
        assert saved.makespan_s == pytest.approx(
            100_000 + saved.losses.seconds + 100 * saved.losses.killed, abs=2
        )

    def test_smaller_elastic_gang_takes_longer(self) -> None:
        report = run_simulation(
            [workload_run(0, 1000, 4), workload_run(0, 1000, 2, replicas=4, min_replicas=1)], policy="hopyard"
        )
        assert report.makespan_s == 2000

    def test_time_limits_are_passed_to_the_policy_on_request_only(self) -> None:
        limits: list[float | None] = []

        def recording_policy(snapshot: Snapshot) -> Plan:
            limits.extend(gang.time_limit_s for gang in snapshot.pending)
            return first_fit(snapshot)

        run = [workload_run(0, 100, 1, time_limit_s=50.0)]
        assert run_simulation(run, policy=recording_policy).makespan_s == 100
        assert (
            run_simulation(run, policy=recording_policy, know_time_limits=True).makespan_s == 50
        )  # and then they are kept
        assert limits == [None, 50.0]


def first_fit(snapshot: Snapshot) -> Plan:
    """Places every pending gang on the first GPUs of n0."""
    return Plan(
        snapshot.version,
        tuple(
            Placement(gang, (Assignment(0, NodeId("n0"), tuple(range(gang.roles[0].resources.gpus))),))
            for gang in snapshot.pending
        ),
    )


class TestReservations:
    def test_reserved_node_is_kept_for_its_owner(self) -> None:
        """Alice's run would overlap bob's reservation, so it waits until that ends."""
        begin = workload([]).begin
        reservation = Reservation(
            ReservationId("r"),
            "bobs",
            begin + timedelta(seconds=100),
            begin + timedelta(seconds=300),
            ("bob",),
            nodes=(NodeId("n0"),),
        )
        runs = [
            workload_run(0, 150, 8, user="alice", time_limit_s=150.0),
            workload_run(120, 50, 8, user="bob", time_limit_s=50.0),
        ]
        report = run_simulation(
            runs, SimulatedCluster(cluster().nodes, None, (reservation,)), "hopyard", know_time_limits=True
        )
        assert waits(report) == [0, 300]


class TestPreemption:
    @staticmethod
    def newest_first(snapshot: Snapshot) -> Plan:
        """Gives the node to the gang submitted last."""
        newest = max(
            [*snapshot.pending, *(run.gang for run in snapshot.running)], key=lambda gang: gang.submitted_at
        )
        busy = snapshot.running[0] if snapshot.running else None
        if busy is None:
            place = first_fit(Snapshot(snapshot.version, snapshot.now, snapshot.nodes, (newest,))).place
            rest = tuple(Hold(gang.id, QueueBacklog(1), 1) for gang in snapshot.pending if gang is not newest)
            return Plan(snapshot.version, place, rest)
        holds = tuple(Hold(gang.id, PreemptionPending(1), 1) for gang in snapshot.pending)
        if busy.stopping or busy.gang is newest:
            return Plan(snapshot.version, (), holds)
        return Plan(
            snapshot.version,
            (),
            holds,
            (Preemption(busy.attempt, busy.gang.id, newest.id, ServicePreemption(newest.id)),),
        )

    @pytest.mark.parametrize("store", ["memory", "sqlite"])
    def test_preempted_run_saves_exits_and_resumes(self, store: str) -> None:
        costs = TimeCosts(start_s=5, save_s=10, restore_s=20)
        report = run_simulation(
            [workload_run(0, 100, 8), workload_run(50, 30, 8)],
            policy=self.newest_first,
            costs=costs,
            store=store,
        )
        # 5 to start, computes from 5 to 50, saved at 60; the other from 60 to 95; then 5 + 20 + the 55 that
        # are left.
        assert waits(report) == [0, 10]
        assert report.makespan_s == 175
        assert (report.losses.preemptions, report.losses.preempted_runs) == (1, 1)
        assert report.losses.seconds == 5 + 10 + 5 + 20
        assert report.losses.gpu_seconds == 8 * 40

    def test_run_that_ends_while_saving_is_not_preempted(self) -> None:
        report = run_simulation(
            [workload_run(0, 55, 8), workload_run(50, 30, 8)],
            policy=self.newest_first,
            costs=TimeCosts(save_s=10),
        )
        assert (report.losses.preemptions, report.makespan_s) == (0, 85)

    def test_preempted_run_in_preparation_exits_at_once(self) -> None:
        report = run_simulation(
            [workload_run(0, 100, 8), workload_run(3, 30, 8)],
            policy=self.newest_first,
            costs=TimeCosts(start_s=5, save_s=10),
        )
        assert report.makespan_s == 3 + 35 + 105


class TestFaults:
    def test_policy_error_ends_the_simulation(self) -> None:
        def failing_policy(snapshot: Snapshot) -> Plan:
            raise ZeroDivisionError("at the third turn")

        with pytest.raises(ZeroDivisionError):
            run_simulation([workload_run(0, 10)], policy=failing_policy)

    def test_impossible_plan_ends_the_simulation(self) -> None:
        def impossible_policy(snapshot: Snapshot) -> Plan:
            return Plan(
                snapshot.version,
                tuple(
                    Placement(gang, (Assignment(0, NodeId("nowhere"), (0,)),)) for gang in snapshot.pending
                ),
            )

        with pytest.raises(HopyardError, match="refuses"):
            run_simulation([workload_run(0, 10)], policy=impossible_policy)

    def test_policy_that_starts_nothing_leaves_runs_unfinished(self) -> None:
        def idle_policy(snapshot: Snapshot) -> Plan:
            return Plan(
                snapshot.version,
                (),
                tuple(Hold(gang.id, GpuModelsClosed(()), 1) for gang in snapshot.pending),
            )

        report = run_simulation([workload_run(0, 10), workload_run(5, 10)], policy=idle_policy)
        assert (report.ended, report.unfinished) == (0, {"quota": 2})

    def test_simulation_ends_while_nodes_are_lost_and_repaired(self) -> None:
        def idle_policy(snapshot: Snapshot) -> Plan:
            return Plan(
                snapshot.version,
                (),
                tuple(Hold(gang.id, GpuModelsClosed(()), 1) for gang in snapshot.pending),
            )

        report = run_simulation([workload_run(0, 10)], policy=idle_policy, mtbf_s=86400.0)
        assert (report.ended, report.unfinished) == (0, {"quota": 1})
        assert report.losses.node_losses > 0

    def test_unknown_names_give_suggestions(self) -> None:
        with pytest.raises(SpecError, match="policy") as raised:
            run_simulation([workload_run(0, 10)], policy="fifoo")
        assert "did you mean `fifo`?" in raised.value.hints
        with pytest.raises(SpecError, match="store"):
            run_simulation([workload_run(0, 10)], store="memoryy")
        with pytest.raises(SpecError, match="vision") as raised:
            run_simulation(
                [workload_run(0, 10, queue="vision")], SimulatedCluster(cluster().nodes, SINGLE_QUEUE_TREE)
            )
        assert any("--queue" in hint for hint in raised.value.hints)

    def test_empty_workload(self) -> None:
        report = run_simulation([])
        assert (report.runs, report.ended, report.makespan_s) == (0, 0, 0.0)
