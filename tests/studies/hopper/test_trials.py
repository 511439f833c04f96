"""What a searcher asks of trials: pause and go on, stop, begin from another's state; also over a driver's
end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.domain.ids import TrialId
from hopyard.studies.hopper.book import Book
from hopyard.studies.hopper.hopper import Hopper
from hopyard.studies.states.shelf import Shelf
from hopyard.studies.trainer import News, Reached, Reported, Work
from tests.studies.hopper import toy_driver
from tests.studies.hopper.cluster import Cluster

ZERO, ONE, TWO = TrialId("0"), TrialId("1"), TrialId("2")


@contextmanager
def driving(cluster: Cluster) -> Iterator[Hopper]:
    """The driver in this process."""
    hopper, journal = toy_driver.make(cluster.said)
    cluster.said["port"] = hopper.port
    try:
        yield hopper
    finally:
        hopper.close(over=False)
        journal.close()


def until(hopper: Hopper, holds: Callable[[list[News]], bool]) -> list[News]:
    news: list[News] = []
    for _ in range(300):
        hopper.room()
        news += hopper.wait(0.1)
        if holds(news):
            return news
    raise AssertionError(f"it came to {news} only")


def reached(*trials: TrialId) -> Callable[[list[News]], bool]:
    return lambda news: {one.trial for one in news if isinstance(one, Reached)} >= set(trials)


def line(cluster: Cluster, trial: TrialId) -> list[tuple[str, int]]:
    """Which trials' hops made its state, newest last, and in which epochs."""
    book = Book.of(cluster.records(), 3)
    hops = {hop["state"]: hop for hop in cluster.of_kind("hop")}
    return [(made.trial, hops[name]["epoch"]) for name, made in reversed(list(book.line(book.heads[trial])))]


def workers(cluster: Cluster) -> None:
    for at in range(3):
        cluster.join(f"w{at}")


def test_a_trial_that_was_paused_goes_on_where_it_was(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        hopper.start(Work(ZERO, {"lr": 1}, 1))
        hopper.start(Work(ONE, {"lr": 2}, 3))
        until(hopper, reached(ZERO))
        hopper.end(ZERO, keep=True)
        until(hopper, reached(ONE))
        hopper.start(Work(ZERO, {"lr": 1}, 3, done=1))
        news = until(hopper, reached(ZERO))
        assert [one.step for one in news if isinstance(one, Reported)] == [2, 3]
        assert line(cluster, ZERO) == [("0", 0)] * 3 + [("0", 1)] * 3 + [("0", 2)] * 3


def test_one_that_is_paused_in_the_middle_of_an_epoch_goes_on_after_the_last_whole_one(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, [], unit_s=0.05, hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        hopper.start(Work(ZERO, {}, 9))
        until(hopper, lambda news: any(isinstance(one, Reported) and one.step == 2 for one in news))
        hopper.end(ZERO, keep=True)
        hopper.start(Work(ZERO, {}, 4, done=2))
        until(hopper, reached(ZERO))
        assert line(cluster, ZERO) == [("0", epoch) for epoch in range(4) for _ in range(3)]


def test_a_trial_begins_with_a_copy_of_another_and_with_values_of_its_own(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        for trial in (ZERO, ONE):
            hopper.start(Work(trial, {"lr": int(trial)}, 2))
        until(hopper, reached(ZERO, ONE))
        hopper.end(ZERO, keep=True)
        hopper.end(ONE, keep=True)
        hopper.start(Work(ONE, {"lr": 7}, 3, done=2, start_from=ZERO))
        until(hopper, reached(ONE))
        assert line(cluster, ONE) == [("0", 0)] * 3 + [("0", 1)] * 3 + [("1", 2)] * 3
        assert [one["params"] for one in cluster.of_kind("begun") if one["trial"] == "1"] == [
            {"lr": 1},
            {"lr": 7},
        ]


def test_one_that_is_stopped_gets_no_more_and_leaves_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], unit_s=0.02, hybrid=False) as cluster, driving(cluster) as hopper:
        workers(cluster)
        hopper.start(Work(ZERO, {}, 50))
        hopper.start(Work(ONE, {}, 2))
        until(hopper, lambda news: any(isinstance(one, Reported) and one.trial == ZERO for one in news))
        hopper.end(ZERO, keep=False)
        hopper.end(ZERO, keep=False)
        news = until(hopper, reached(ONE))
        assert {one.trial for one in news} == {ONE}
        hopper.end(ONE, keep=False)
        assert hopper.best is not None
        best = hopper.best.state
        shelf = Shelf(cluster.common["shelf"], tmp_path)
        until(hopper, lambda _: shelf.names() == [best])
        shelf.close()


def test_what_was_paused_before_the_driver_ended_is_there_after(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], hybrid=False) as cluster:
        hopper, journal = toy_driver.make(cluster.said)
        cluster.said["port"] = hopper.port
        workers(cluster)
        for trial in (ZERO, ONE):
            hopper.start(Work(trial, {}, 1))
        until(hopper, reached(ZERO, ONE))
        hopper.end(ZERO, keep=True)
        hopper._hub.close()  # as a driver that was killed: nobody is told of anything
        journal.close()
        with driving(cluster) as again:
            again.start(Work(TWO, {}, 2, start_from=ZERO, done=1))
            again.start(Work(ONE, {}, 1, done=1, resumed=True))
            until(again, reached(ONE, TWO))
            assert line(cluster, TWO) == [("0", 0)] * 3 + [("2", 1)] * 3


def test_a_driver_that_leaves_saves_what_each_trial_has_and_nothing_is_repeated(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], unit_s=0.05, hybrid=False) as cluster:
        with driving(cluster) as hopper:
            workers(cluster)
            for trial in (ZERO, ONE):
                hopper.start(Work(trial, {}, 3))
            until(hopper, lambda _: len(cluster.of_kind("hop")) >= 4)
        for process in cluster.crew.values():
            process.wait(20)
        before = {(hop["trial"], hop["epoch"], *hop["partitions"]) for hop in cluster.of_kind("hop")}
        cluster.said |= {"restore": True, "port": 0}
        with driving(cluster) as again:
            workers(cluster)
            for trial in (ZERO, ONE):
                again.start(Work(trial, {}, 3, resumed=True))
            until(again, reached(ZERO, ONE))
        hops = [(hop["trial"], hop["epoch"], *hop["partitions"]) for hop in cluster.of_kind("hop")]
        assert before < set(hops)
        assert len(hops) == len(set(hops)) == 18
