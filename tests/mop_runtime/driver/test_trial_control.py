"""Trial control by a searcher: pause, resume, stop, start from the state of another trial; also across a
driver restart."""

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
def open_trainer(cluster: Cluster) -> Iterator[MopTrainer]:
    """Runs the driver in this process."""
    trainer, journal = fake_study_driver.make_trainer(cluster.settings)
    cluster.settings["port"] = trainer.port
    try:
        yield trainer
    finally:
        trainer.close(completed=False)
        journal.close()


def wait_for_events(trainer: MopTrainer, holds: Callable[[list[TrainerEvent]], bool]) -> list[TrainerEvent]:
    events: list[TrainerEvent] = []
    for _ in range(300):
        trainer.free_capacity()
        events += trainer.wait(0.1)
        if holds(events):
            return events
    raise AssertionError(f"it came to {events} only")


def all_reached_budget(*trials: TrialId) -> Callable[[list[TrainerEvent]], bool]:
    return lambda events: {event.trial for event in events if isinstance(event, BudgetReached)} >= set(trials)


def state_lineage(cluster: Cluster, trial: TrialId) -> list[tuple[str, int]]:
    """Returns the trials and epochs of the hops that produced the state, newest last."""
    index = JournalIndex.from_records(cluster.records(), 3)
    hops = {hop["state"]: hop for hop in cluster.records_of_kind("hop")}
    return [
        (entry.trial, hops[name]["epoch"])
        for name, entry in reversed(list(index.ancestry(index.latest_states[trial])))
    ]


def workers(cluster: Cluster) -> None:
    for at in range(3):
        cluster.start_worker(f"w{at}")


def test_paused_trial_resumes_from_its_state(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster, open_trainer(cluster) as trainer:
        workers(cluster)
        trainer.start(TrialWork(ZERO, {"lr": 1}, 1))
        trainer.start(TrialWork(ONE, {"lr": 2}, 3))
        wait_for_events(trainer, all_reached_budget(ZERO))
        trainer.end(ZERO, keep_state=True)
        wait_for_events(trainer, all_reached_budget(ONE))
        trainer.start(TrialWork(ZERO, {"lr": 1}, 3, done_epochs=1))
        events = wait_for_events(trainer, all_reached_budget(ZERO))
        assert [event.step for event in events if isinstance(event, EpochReported)] == [2, 3]
        assert state_lineage(cluster, ZERO) == [("0", 0)] * 3 + [("0", 1)] * 3 + [("0", 2)] * 3


def test_trial_paused_within_epoch_resumes_after_last_complete_epoch(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, [], unit_s=0.05, hybrid=False) as cluster, open_trainer(cluster) as trainer:
        workers(cluster)
        trainer.start(TrialWork(ZERO, {}, 9))
        wait_for_events(
            trainer,
            lambda events: any(isinstance(event, EpochReported) and event.step == 2 for event in events),
        )
        trainer.end(ZERO, keep_state=True)
        trainer.start(TrialWork(ZERO, {}, 4, done_epochs=2))
        wait_for_events(trainer, all_reached_budget(ZERO))
        assert state_lineage(cluster, ZERO) == [("0", epoch) for epoch in range(4) for _ in range(3)]


def test_trial_starts_from_copied_state_with_own_parameters(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster, open_trainer(cluster) as trainer:
        workers(cluster)
        for trial in (ZERO, ONE):
            trainer.start(TrialWork(trial, {"lr": int(trial)}, 2))
        wait_for_events(trainer, all_reached_budget(ZERO, ONE))
        trainer.end(ZERO, keep_state=True)
        trainer.end(ONE, keep_state=True)
        trainer.start(TrialWork(ONE, {"lr": 7}, 3, done_epochs=2, start_from=ZERO))
        wait_for_events(trainer, all_reached_budget(ONE))
        assert state_lineage(cluster, ONE) == [("0", 0)] * 3 + [("0", 1)] * 3 + [("1", 2)] * 3
        assert [
            record["params"] for record in cluster.records_of_kind("begun") if record["trial"] == "1"
        ] == [
            {"lr": 1},
            {"lr": 7},
        ]


def test_stopped_trial_gets_no_units_and_its_states_are_dropped(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], unit_s=0.02, hybrid=False) as cluster, open_trainer(cluster) as trainer:
        workers(cluster)
        trainer.start(TrialWork(ZERO, {}, 50))
        trainer.start(TrialWork(ONE, {}, 2))
        wait_for_events(
            trainer,
            lambda events: any(isinstance(event, EpochReported) and event.trial == ZERO for event in events),
        )
        trainer.end(ZERO, keep_state=False)
        trainer.end(ZERO, keep_state=False)
        events = wait_for_events(trainer, all_reached_budget(ONE))
        assert {event.trial for event in events} == {ONE}
        trainer.end(ONE, keep_state=False)
        assert trainer.best is not None
        best = trainer.best.state
        store = StateStore(cluster.common_settings["store"], tmp_path)
        wait_for_events(trainer, lambda _: store.list_states() == [best])
        store.close()


def test_paused_trial_survives_driver_restart(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster:
        trainer, journal = fake_study_driver.make_trainer(cluster.settings)
        cluster.settings["port"] = trainer.port
        workers(cluster)
        for trial in (ZERO, ONE):
            trainer.start(TrialWork(trial, {}, 1))
        wait_for_events(trainer, all_reached_budget(ZERO, ONE))
        trainer.end(ZERO, keep_state=True)
        trainer._server.close()  # as after a kill of the driver: no worker is notified
        journal.close()
        with open_trainer(cluster) as second_trainer:
            second_trainer.start(TrialWork(TWO, {}, 2, start_from=ZERO, done_epochs=1))
            second_trainer.start(TrialWork(ONE, {}, 1, done_epochs=1, is_resumed=True))
            wait_for_events(second_trainer, all_reached_budget(ONE, TWO))
            assert state_lineage(cluster, TWO) == [("0", 0)] * 3 + [("2", 1)] * 3


def test_stopping_driver_saves_states_and_no_unit_is_repeated(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], unit_s=0.05, hybrid=False) as cluster:
        with open_trainer(cluster) as trainer:
            workers(cluster)
            for trial in (ZERO, ONE):
                trainer.start(TrialWork(trial, {}, 3))
            wait_for_events(trainer, lambda _: len(cluster.records_of_kind("hop")) >= 4)
        for process in cluster.workers_by_name.values():
            process.wait(20)
        before = {(hop["trial"], hop["epoch"], *hop["partitions"]) for hop in cluster.records_of_kind("hop")}
        cluster.settings |= {"restore": True, "port": 0}
        with open_trainer(cluster) as second_trainer:
            workers(cluster)
            for trial in (ZERO, ONE):
                second_trainer.start(TrialWork(trial, {}, 3, is_resumed=True))
            wait_for_events(second_trainer, all_reached_budget(ZERO, ONE))
        hops = [(hop["trial"], hop["epoch"], *hop["partitions"]) for hop in cluster.records_of_kind("hop")]
        assert before < set(hops)
        assert len(hops) == len(set(hops)) == 18
