"""Requests of a run in the output of `hop ps`, `hop info` and `hop diff`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hopyard.cli.diff import _comparable_fields
from hopyard.cli.info import _attempt_lines, _event_lines, _latest_lines, _queue_settings, _role_text
from hopyard.cli.ps import gpu_request_text, run_table
from hopyard.cli.run_text import metrics_line, queue_line, start_line
from hopyard.client.build_run import build_request


def test_long_alert_is_one_line_among_the_events() -> None:
    alert = {"at": "2026-01-01T00:00:00+00:00", "kind": "alert", "detail": "error: nan\nat: " + "x" * 1000}
    [line, other] = _event_lines([alert, {**alert, "kind": "preempted", "detail": "y" * 200}])
    text = line.partition("alert: ")[2]
    assert text.startswith("error: nan at: xxx") and text.endswith("x…") and len(text) == 120
    assert other.endswith("y" * 200)


def spec(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("")
    return build_request("train.py", (), folder, options).spec(code=None, git=None, environment={})


def run_of(run_spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": run_spec["queue"] or "x",
        "name": "a/b/1",
        "spec": run_spec,
        "phase": "queued",
        "submitted_at": "2026-01-01T00:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("options", "column", "resources", "where"),
    [
        ({}, "", "1 CPU", None),
        ({"gpus": "2", "memory": "4G"}, "2", "1 CPU, 4G memory, 2 GPU", None),
        ({"gpus": "A100|H100:0.5"}, "A100|H100:0.5", "1 CPU, A100|H100:0.5 GPU", None),
        ({"gpu_memory": "20G"}, "20G of one", "1 CPU, 20G of one GPU", None),
        ({"gpus": "A100", "gpu_memory": "20G"}, "20G of one", "1 CPU, 20G of one A100 GPU", None),
        (
            {"gpus": "1", "replicas": "2-8", "extras": ("fpga=3",)},
            "2-8x 1",
            "2-8 x 1 CPU, 1 GPU, 3 fpga",
            None,
        ),
        ({"pool": "a,b", "where": ("rack=1",)}, "", "1 CPU", "pool a or b, rack=1"),
    ],
)
def test_resource_texts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    column: str,
    resources: str,
    where: str | None,
) -> None:
    run_spec = spec(tmp_path, monkeypatch, **options)
    lines = dict(_role_text(run_spec["roles"][0], run_spec))
    assert (gpu_request_text(run_of(run_spec)), lines["resources"], lines.get("where")) == (
        column,
        resources,
        where,
    )


def test_elastic_run_shows_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(spec(tmp_path, monkeypatch, gpus="A100:1", replicas="2-8"))
    attempt = {"number": 1, "phase": "running", "nodes": ["n1"] * 4, "counts": [4]}
    run |= {"phase": "running", "attempt": attempt, "served_s": 0.0}
    assert (gpu_request_text(run), start_line(run)) == ("4x A100:1", "starts at once as 4 replicas")
    assert _attempt_lines(run, attempt) == "1  running as 4 replicas on n1"
    assert gpu_request_text(run | {"phase": "queued"}) == "2-8x A100:1"
    fixed = run_of(spec(tmp_path, monkeypatch, gpus="A100:1", replicas="4"))
    assert _attempt_lines(fixed, attempt) == "1  running on n1"
    chief = run["spec"]["roles"][0] | {"name": "chief", "replicas": 1, "min_replicas": 0}
    gang = run | {"spec": run["spec"] | {"roles": [chief, *run["spec"]["roles"]]}}
    assert (
        _attempt_lines(gang, attempt | {"counts": [1, 3]})
        == "1  running as 4 replicas (chief 1, worker 3) on n1"
    )


def test_overdue_start_is_shown_as_late() -> None:
    def told(seconds: float) -> str:
        return queue_line(
            {
                "name": "a/b/1",
                "position": 1,
                "expected_at": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(),
                "hold_detail": "why",
            }
        )

    assert told(-3) == "position 1, later than expected, see `hop why a/b/1`: why"
    assert told(30).startswith("position 1, starts at about ")


def test_time_is_never_above_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (0.4, 2.4, 17.6, 59.7, 100, 3599.7, 7100):
        began = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
        run = run_of(spec(tmp_path, monkeypatch)) | {
            "phase": "running",
            "submitted_at": began,
            "started_at": began,
            "served_s": 0.0,
        }
        run |= {"attempt": {"started_at": began, "ended_at": None}}
        head, row = run_table([run])
        age, took = row[: head.index("AGE") + 3].split("running")[1], row[head.index("AGE") + 3 :]
        assert age.strip() >= took.strip() if seconds < 10 else age.strip() == took.strip()


def test_queue_settings_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_spec = spec(tmp_path, monkeypatch, queue="q", priority=3, preemptible=False, topology="same:rack/2")
    assert _queue_settings(run_spec) == "q, priority 3, not preemptible"
    assert _queue_settings(spec(tmp_path, monkeypatch)) == "the default, the queue's priority"
    facts = _comparable_fields(run_of(run_spec))["resources"]
    assert (
        facts["queue"],
        facts["priority"],
        facts["preemptible"],
        facts["topology"],
        facts["worker replicas"],
    ) == ("q", 3, False, "same:rack/2", "1")


def test_preempted_run_shows_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(spec(tmp_path, monkeypatch)) | {
        "phase": "stopping",
        "attempt": {"preempt_reason": "run a/b/2 has priority 90, this one 50"},
    }
    assert run_table([run])[1].endswith("is preempted: run a/b/2 has priority 90, this one 50")
    run["attempt"] = {"preempt_reason": ""}
    assert "is preempted" not in run_table([run])[1]


def test_columns_without_information_are_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = (
        run_of(spec(tmp_path, monkeypatch)),
        run_of(spec(tmp_path, monkeypatch, queue="q", gpus="2")),
    )
    assert run_table([plain])[0].split() == ["RUN", "SCRIPT", "PHASE", "AGE", "TIME"]
    assert run_table([plain, other])[0].split() == ["RUN", "SCRIPT", "QUEUE", "GPUS", "PHASE", "AGE", "TIME"]


def test_names_of_metrics_forge_no_line() -> None:
    name = "nl\nphase  succeeded\x1b[2J"
    assert _latest_lines({name: [7, 3.0], "a": [0, "NaN"]}) == [
        "a NaN  (step 0)",
        r"nl\nphase  succeeded\x1b[2J 3  (step 7)",
    ]
    assert metrics_line({name: 3.0}) == r"nl\nphase  succeeded\x1b[2J 3"


@pytest.mark.parametrize(
    ("launcher", "ending"),
    [("jax", "on each of 2 nodes; each replica starts the command once"), ("torchrun", "on each of 2 nodes")],
)
def test_note_about_nodes_depends_on_the_launcher(launcher: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    notes: list[str] = []
    options = {"nodes": 2, "gpus": "4", "launcher": launcher}
    build_request("train.py", (), tmp_path, options, notify=notes.append)
    assert notes == [f"note: one replica with 4 GPUs {ending}"]
