"""Which parameters code reads of the config of a trial."""

from __future__ import annotations

import os
import pickle

import pytest

from hopyard.trainables.config import ALL_READ, Config, params_of, track_reads

CONFIG = Config({"lr": 0.1, "width": 8}, epochs=3)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda config: config.lr, {"lr"}),
        (lambda config: config["width"], {"width"}),
        (lambda config: config.get("lr", 1), {"lr"}),
        (lambda config: config.at(2).width, {"width"}),
        (dict, {"lr", "width"}),
        (lambda config: {**config}, {"lr", "width"}),
        (lambda config: config.params["lr"], {"lr", "width"}),
        (pickle.dumps, {"lr", "width"}),
        (lambda config: (config.epochs, config.seed, "lr" in config, len(config)), set()),
        (params_of, set()),
    ],
)
def test_reads_are_tracked(read: object, expected: set[str]) -> None:
    with track_reads() as names:
        read(CONFIG)  # type: ignore[operator]
    assert names == expected
    assert CONFIG.at(1, 5) == Config({"lr": 0.1, "width": 8}, epoch=1, epochs=5)


def test_readers_at_the_same_time_are_independent() -> None:
    with track_reads() as outer:
        with track_reads() as inner:
            pass
        CONFIG.lr  # noqa: B018
    assert (outer, inner) == ({"lr"}, set())


def test_forked_process_may_read_all() -> None:
    with track_reads() as names:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    assert names == {ALL_READ}
