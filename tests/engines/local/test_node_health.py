"""A node that cannot start replicas reports it, and is ready again once it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hopyard.config.node_checks import call_with_timeout, find_disk_problem, find_home_problem
from hopyard.engines.local import node_health
from hopyard.engines.local.node_health import HealthChecks, NodeHealth


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_unresponsive_gpu_driver_makes_node_not_ready_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_health, "CHECK_INTERVAL_S", 0.01)
    answer, queries, may_say = "GPU 1 does not answer: lost", list[Sequence[int]](), threading.Event()

    def driver(indices: Sequence[int]) -> str:
        queries.append(indices)
        may_say.wait()
        return answer

    node = NodeHealth(HealthChecks(gpus=driver), tmp_path, tmp_path / "attempts", (0, 1))
    assert node.current_problem() == "" and not queries, "it is not asked without a reason"
    node.recheck_gpus()
    assert node.current_problem() == "waiting for the GPU driver"
    may_say.set()
    wait_until(lambda: node.current_problem() == answer)
    answer = ""
    wait_until(lambda: node.current_problem() == "")
    assert set(queries) == {(0, 1)}


def test_declared_gpus_are_not_checked(tmp_path: Path) -> None:
    node = NodeHealth(HealthChecks(gpus=lambda _: "there is no driver"), tmp_path, tmp_path / "attempts", ())
    node.recheck_gpus()
    assert node.current_problem() == ""


def test_failed_launch_is_retried_with_disk_check_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_health, "CHECK_INTERVAL_S", 0.0)
    low = ["only 1 MiB is free"]
    node = NodeHealth(HealthChecks(home=lambda _: low[0]), tmp_path, tmp_path / "attempts", ())
    assert node.current_problem() == "only 1 MiB is free"
    low[0] = ""
    assert node.current_problem() == "" and not node.is_due()
    node.record_failure("no descriptors")
    assert node.current_problem() == "no descriptors" and node.is_due() and node.recheck()
    node.record_success()
    assert node.current_problem() == ""
    (tmp_path / "attempts").rmdir()
    (tmp_path / "attempts").write_text("no folder")
    assert not node.recheck()


def test_driver_that_never_answers_is_reported(tmp_path: Path) -> None:
    forever = threading.Event()
    assert (
        call_with_timeout(lambda: str(forever.wait()), timeout_s=0.01, default="the driver does not answer")
        == "the driver does not answer within 0.01 s"
    )
    forever.set()
    assert find_disk_problem(tmp_path) == ""
    assert "does not answer" in find_disk_problem(tmp_path / "gone")


def test_gpus_reported_during_query_are_queried_again(tmp_path: Path) -> None:
    may_say, queries = threading.Event(), []

    def driver(_gpus: Sequence[int]) -> str:
        queries.append(len(queries))
        if len(queries) == 1:
            may_say.wait(10)
        return ""

    node = NodeHealth(HealthChecks(gpus=driver), tmp_path, tmp_path / "attempts", (0,))
    node.recheck_gpus()
    wait_until(lambda: bool(node.current_problem() and queries))
    node.recheck_gpus()
    may_say.set()
    wait_until(lambda: node.current_problem() == "")
    assert queries == [0, 1]


def test_unusable_shared_folders_make_node_not_ready(tmp_path: Path) -> None:
    assert find_home_problem(tmp_path) == "", "they are made when they are needed"
    trees = tmp_path / "cache" / "trees"
    trees.mkdir(parents=True)
    assert find_home_problem(tmp_path) == ""
    trees.rmdir()
    trees.write_text("no folder")
    assert find_home_problem(tmp_path) == f"{trees} is not a folder; remove it"
    trees.unlink()
    trees.symlink_to(tmp_path / "gone")
    assert find_home_problem(tmp_path).startswith(f"{trees} is a broken link")
    trees.unlink()
    trees.symlink_to(trees)
    assert find_home_problem(tmp_path).startswith(f"{trees} cannot be read")
