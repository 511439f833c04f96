"""A node that can start nothing says so, and is open again once it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hopyard.config.node_checks import answered, disk_trouble, home_trouble
from hopyard.engines.local import health
from hopyard.engines.local.health import Checks, Health


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_driver_that_stops_to_answer_closes_the_node_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_EVERY_S", 0.01)
    answer, asked, may_say = "GPU 1 does not answer: lost", list[Sequence[int]](), threading.Event()

    def driver(indices: Sequence[int]) -> str:
        asked.append(indices)
        may_say.wait()
        return answer

    node = Health(Checks(gpus=driver), tmp_path, tmp_path / "attempts", (0, 1))
    assert node.trouble() == "" and not asked, "it is not asked without a reason"
    node.doubt_gpus()
    assert node.trouble() == "the driver of its GPUs is being asked"
    may_say.set()
    until(lambda: node.trouble() == answer)
    answer = ""
    until(lambda: node.trouble() == "")
    assert set(asked) == {(0, 1)}


def test_declared_gpus_are_never_doubted(tmp_path: Path) -> None:
    node = Health(Checks(gpus=lambda _: "there is no driver"), tmp_path, tmp_path / "attempts", ())
    node.doubt_gpus()
    assert node.trouble() == ""


def test_a_launch_that_failed_is_tried_again_and_a_disk_is_looked_at_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_EVERY_S", 0.0)
    low = ["only 1 MiB is free"]
    node = Health(Checks(home=lambda _: low[0]), tmp_path, tmp_path / "attempts", ())
    assert node.trouble() == "only 1 MiB is free"
    low[0] = ""
    assert node.trouble() == "" and not node.is_due()
    node.failed("no descriptors")
    assert node.trouble() == "no descriptors" and node.is_due() and node.try_again()
    node.works()
    assert node.trouble() == ""
    (tmp_path / "attempts").rmdir()
    (tmp_path / "attempts").write_text("no folder")
    assert not node.try_again()


def test_what_never_answers_is_said_to_be_so(tmp_path: Path) -> None:
    forever = threading.Event()
    assert (
        answered(lambda: str(forever.wait()), within_s=0.01, otherwise="the driver does not answer")
        == "the driver does not answer within 0.01 s"
    )
    forever.set()
    assert disk_trouble(tmp_path) == ""
    assert "does not answer" in disk_trouble(tmp_path / "gone")


def test_gpus_that_are_doubted_while_the_driver_is_asked_are_asked_again(tmp_path: Path) -> None:
    may_say, asked = threading.Event(), []

    def driver(_gpus: Sequence[int]) -> str:
        asked.append(len(asked))
        if len(asked) == 1:
            may_say.wait(10)
        return ""

    node = Health(Checks(gpus=driver), tmp_path, tmp_path / "attempts", (0,))
    node.doubt_gpus()
    until(lambda: bool(node.trouble() and asked))
    node.doubt_gpus()
    may_say.set()
    until(lambda: node.trouble() == "")
    assert asked == [0, 1]


def test_folders_that_runs_share_and_cannot_use_close_the_node(tmp_path: Path) -> None:
    assert home_trouble(tmp_path) == "", "they are made when they are needed"
    trees = tmp_path / "cache" / "trees"
    trees.mkdir(parents=True)
    assert home_trouble(tmp_path) == ""
    trees.rmdir()
    trees.write_text("no folder")
    assert home_trouble(tmp_path) == f"{trees} is not a folder; remove it"
    trees.unlink()
    trees.symlink_to(tmp_path / "gone")
    assert home_trouble(tmp_path).startswith(f"{trees} leads nowhere")
    trees.unlink()
    trees.symlink_to(trees)
    assert home_trouble(tmp_path).startswith(f"{trees} cannot be read")
