"""What a searcher asks of trials: pause and go on, stop, begin from another's state; also over a driver's
end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.domain.ids import TrialId
from hopyard.mop_runtime.driver.journal_index import JournalIndex
from hopyard.mop_runtime.driver.mop_trainer import MopTrainer
from hopyard.studies.trainer import BudgetReached, EpochReported, TrainerEvent, TrialWork
from hopyard.trial_state.shared_memory_store import StateStore
from tests.mop_runtime.driver import fake_study_driver
from tests.mop_runtime.driver.cluster import Cluster

ZERO, ONE, TWO = TrialId("0"), TrialId("1"), TrialId("2")


@contextmanager
def driving(cluster: Cluster) -> Iterator[MopTrainer]:
    """The driver in this process."""
    hopper, journal = fake_study_driver.make(cluster.said)
    cluster.said["port"] = hopper.port
    try:
        yield hopper
    finally:
        hopper.close(completed=False)
        journal.close()


def until(hopper: MopTrainer, holds: Callable[[list[TrainerEvent]], bool]) -> list[TrainerEvent]:
    news: list[TrainerEvent] = []
    for _ in range(300):
        hopper.free_capacity()
        news += hopper.wait(0.1)
        if holds(news):
            return news
    raise AssertionError(f"it came to {news} only")


def reached(*trials: TrialId) -> Callable[[list[TrainerEvent]], bool]:
    return lambda news: {one.trial for one in news if isinstance(one, BudgetReached)} >= set(trials)


def line(cluster: Cluster, trial: TrialId) -> list[tuple[str, int]]:
    """Which trials' hops made its state, newest last, and in which epochs."""
    book = JournalIndex.from_records(cluster.records(), 3)
    hops = {hop["state"]: hop for hop in cluster.of_kind("hop")}
    return [
        (made.trial, hops[name]["epoch"])
        for name, made in reversed(list(book.ancestry(book.latest_states[trial])))
    ]


def workers(cluster: Cluster) -> None:
    for at in range(3):
        cluster.join(f"w{at}")


def test_paused_trial_resumes_from_its_state(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        hopper.start(TrialWork(ZERO, {"lr": 1}, 1))
        hopper.start(TrialWork(ONE, {"lr": 2}, 3))
        until(hopper, reached(ZERO))
        hopper.end(ZERO, keep_state=True)
        until(hopper, reached(ONE))
        hopper.start(TrialWork(ZERO, {"lr": 1}, 3, done_epochs=1))
        news = until(hopper, reached(ZERO))
        assert [one.step for one in news if isinstance(one, EpochReported)] == [2, 3]
        assert line(cluster, ZERO) == [("0", 0)] * 3 + [("0", 1)] * 3 + [("0", 2)] * 3


def test_trial_paused_within_epoch_resumes_after_last_complete_epoch(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, [], unit_s=0.05, hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        hopper.start(TrialWork(ZERO, {}, 9))
        until(hopper, lambda news: any(isinstance(one, EpochReported) and one.step == 2 for one in news))
        hopper.end(ZERO, keep_state=True)
        hopper.start(TrialWork(ZERO, {}, 4, done_epochs=2))
        until(hopper, reached(ZERO))
        assert line(cluster, ZERO) == [("0", epoch) for epoch in range(4) for _ in range(3)]


def test_trial_starts_from_copied_state_with_own_parameters(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        for trial in (ZERO, ONE):
            hopper.start(TrialWork(trial, {"lr": int(trial)}, 2))
        until(hopper, reached(ZERO, ONE))
        hopper.end(ZERO, keep_state=True)
        hopper.end(ONE, keep_state=True)
        hopper.start(TrialWork(ONE, {"lr": 7}, 3, done_epochs=2, start_from=ZERO))
        until(hopper, reached(ONE))
        assert line(cluster, ONE) == [("0", 0)] * 3 + [("0", 1)] * 3 + [("1", 2)] * 3
        assert [one["params"] for one in cluster.of_kind("begun") if one["trial"] == "1"] == [
            {"lr": 1},
            {"lr": 7},
        ]


def test_stopped_trial_gets_no_units_and_its_states_are_dropped(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], unit_s=0.02, hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        hopper.start(TrialWork(ZERO, {}, 50))
        hopper.start(TrialWork(ONE, {}, 2))
        until(hopper, lambda news: any(isinstance(one, EpochReported) and one.trial == ZERO for one in news))
        hopper.end(ZERO, keep_state=False)
        hopper.end(ZERO, keep_state=False)
        news = until(hopper, reached(ONE))
        assert {one.trial for one in news} == {ONE}
        hopper.end(ONE, keep_state=False)
        assert hopper.best is not None
        best = hopper.best.state
        shelf = StateStore(cluster.common["shelf"], tmp_path)
        until(hopper, lambda _: shelf.list_states() == [best])
        shelf.close()


def test_paused_trial_survives_driver_restart(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster:
        hopper, journal = fake_study_driver.make(cluster.said)
        cluster.said["port"] = hopper.port
        workers(cluster)
        for trial in (ZERO, ONE):
            hopper.start(TrialWork(trial, {}, 1))
        until(hopper, reached(ZERO, ONE))
        hopper.end(ZERO, keep_state=True)
        hopper._server.close()  # as a driver that was killed: nobody is told of anything
        journal.close()
        with driving(cluster) as again:
            again.start(TrialWork(TWO, {}, 2, start_from=ZERO, done_epochs=1))
            again.start(TrialWork(ONE, {}, 1, done_epochs=1, is_resumed=True))
            until(again, reached(ONE, TWO))
            assert line(cluster, TWO) == [("0", 0)] * 3 + [("2", 1)] * 3


def test_stopping_driver_saves_states_and_no_unit_is_repeated(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], unit_s=0.05, hybrid=False) as cluster:
        with driving(cluster) as hopper:
            workers(cluster)
            for trial in (ZERO, ONE):
                hopper.start(TrialWork(trial, {}, 3))
            until(hopper, lambda _: len(cluster.of_kind("hop")) >= 4)
        for process in cluster.crew.values():
            process.wait(20)
        before = {(hop["trial"], hop["epoch"], *hop["partitions"]) for hop in cluster.of_kind("hop")}
        cluster.said |= {"restore": True, "port": 0}
        with driving(cluster) as again:
            workers(cluster)
            for trial in (ZERO, ONE):
                again.start(TrialWork(trial, {}, 3, is_resumed=True))
            until(again, reached(ZERO, ONE))
        hops = [(hop["trial"], hop["epoch"], *hop["partitions"]) for hop in cluster.of_kind("hop")]
        assert before < set(hops)
        assert len(hops) == len(set(hops)) == 18
