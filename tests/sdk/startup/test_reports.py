"""Of the processes that a launcher starts in a replica, the first one reports its metrics."""

from __future__ import annotations

import pytest

from hopyard.sdk.startup.reports import is_first_process, log_metrics, record_summary


@pytest.mark.parametrize(
    ("replica", "variables", "first"),
    [
        ("0", {}, True),
        # replicas of a gang on one node
        ("0", {"RANK": "0", "LOCAL_RANK": "0"}, True),
        ("1", {"RANK": "1", "LOCAL_RANK": "1"}, True),
        # torchrun in a run of one replica, and in each of two
        ("0", {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, True),
        ("0", {"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}, False),
        ("1", {"RANK": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, True),
        ("1", {"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}, False),
        # processes of Lightning, and of scripts that set the rank themselves
        ("0", {"LOCAL_RANK": "1"}, False),
        ("0", {"RANK": "3"}, False),
        ("0", {"LOCAL_RANK": "-1"}, True),
    ],
)
def test_first_process_of_a_replica(
    monkeypatch: pytest.MonkeyPatch, replica: str, variables: dict[str, str], first: bool
) -> None:
    for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOPYARD_REPLICA_DIR", f"/home/run-folders/a/{replica}")
    assert is_first_process() is first


def test_script_without_the_variables_of_its_replica_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOPYARD_REPLICA_DIR", raising=False)
    log_metrics("unknown library", {"a": 1.0})
    record_summary("unknown library", {"a": 1.0})
    assert capsys.readouterr().err.count("the hook on unknown library failed") == 1
