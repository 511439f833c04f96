"""The prefixes of scalars by the folders of their files."""

from __future__ import annotations

import pytest

from hopyard.replica.event_file_prefix import EventFilePrefixes


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        ([""], [""]),
        (["."], [""]),
        (["runs/CartPole-v1__ppo__1__1795618329"], [""]),
        (["runs/a", "runs/b"], ["a/", "b/"]),
        (["out/runs/Nov20_07-39-41_host"], [""]),
        (["runs/Nov20_07-39-41_host", "runs/Nov20_07-39-41_host/1795618046.9512"], ["", ""]),
        (
            ["logs/fit/20261126-120000/train", "logs/fit/20261126-120000/validation"],
            ["train/", "validation/"],
        ),
        (["logs/train"], ["train/"]),
        (["logs/train/runs/2026-11-26_12-00-00/tensorboard/version_0"], [""]),
        (["lightning_logs/version_0", "lightning_logs/version_1"], ["", "2/"]),
        (["runs/ppo__1795618329", "runs/dqn__1795618330"], ["ppo/", "dqn/"]),
        (["runs/ppo__1795618329", "runs/ppo__1795618330"], ["", "2/"]),
        (["runs/x", "runs/x/both_a", "runs/x/both_b"], ["", "both_a/", "both_b/"]),
    ],
)
def test_prefixes_hold_the_meaning_only(folders: list[str], expected: list[str]) -> None:
    prefixes = EventFilePrefixes()
    for folder in folders:
        prefixes.add(folder)
    assert [prefixes.prefix(folder) for folder in folders] == expected


def test_assigned_prefix_stays() -> None:
    prefixes = EventFilePrefixes()
    prefixes.add("runs/a")
    assert prefixes.prefix("runs/a") == ""
    prefixes.add("runs/b")
    assert (prefixes.prefix("runs/a"), prefixes.prefix("runs/b")) == ("", "b/")
