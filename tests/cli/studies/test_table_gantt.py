"""The table of a study and its Gantt chart, as text."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from hopyard.api_client.client import Client
from hopyard.cli.studies import gantt as drawing
from hopyard.cli.studies.command import _parse_epochs
from hopyard.cli.studies.live_screen import StudyScreen
from hopyard.cli.studies.show import _trial_lines
from hopyard.cli.studies.table import failure_reason, study_heading, trial_table
from hopyard.cli.terminal import console
from hopyard.client.local_searcher import build_searcher
from hopyard.client.study_lookup import read_journal
from hopyard.config.search.search_file import search_from_mapping
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.studies.journal import encode_record
from hopyard.studies.view.gantt import as_data as gantt_data
from hopyard.studies.view.gantt import gantt
from hopyard.studies.view.study_data import as_data
from hopyard.studies.view.study_view import StudyView
from tests.studies.view.test_study_view import SPEC, hop_record, proposal_record, report_record


def _view() -> StudyView:
    return StudyView.from_records([
        SPEC,
        proposal_record("0", lr=0.1, kind="sgd"), proposal_record("1", lr=0.01),
        proposal_record("2", lr=1.0, start_from="0"),
        hop_record(0, "0", "0", at=0.0), hop_record(1, "1", "1", at=0.0), hop_record(2, "1", "0", at=1.1),
        report_record("0", 1, 0.5), report_record("1", 1, 0.75), report_record("1", 2, 0.7),
        {"kind": "failed", "trial": "2", "error": "ValueError: lr is too large\nmore", "traceback": ""},
    ])  # fmt: skip


def test_best_trial_is_first_and_the_error_is_the_last_column() -> None:
    lines = trial_table(_view())
    assert lines[0].split() == ["TRIAL", "STATE", "EPOCH", "acc", "BEST", "ON", "lr", "kind"]
    assert lines[1].split() == ["1", "completed", "2/2", "0.7", "0.75", "0.01"]
    assert lines[2].split() == ["0", "training", "1/2", "0.5", "0.5", "0", "0.1", "sgd"]
    assert lines[3].endswith("ValueError: lr is too large")


def test_rule_that_ended_the_study_is_named() -> None:
    view = _view()
    assert not any("ended early" in line for line in study_heading(view))
    view.apply({"kind": "note", "text": "the study ends: its time is over", "stop_rule": "its time is over"})
    stopped = report_record("0", 1, 0.5, outcome="stopped", verdict="stop")
    view.apply({**stopped, "reason": "its time is over"})
    assert "ended early: its time is over" in study_heading(view)
    assert "stopped: its time is over" in _trial_lines(view, view.trials["0"])
    assert as_data(view)["stop_rule"] == "its time is over"


def test_trial_that_is_a_run_has_its_run_name() -> None:
    view = _view()
    for record in (
        {"kind": "run", "trial": "1", "run": "bkpb05vv3ktdsg84pc83"},
        {"kind": "submitted", "trial": "1", "run": "bkpb05vv3ktdsg84pc83", "name": "alice/mnist/12"},
    ):
        view.apply(record)
    assert " alice/mnist/12 " in trial_table(view)[1]
    assert "run alice/mnist/12" in _trial_lines(view, view.trials["1"])


def test_journal_is_read_to_its_end_in_small_parts() -> None:
    journal = b"\n" + b"".join(encode_record({"kind": "note", "n": number}) for number in range(50))

    class JournalHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            offset = int(parse_qs(urlsplit(self.path).query).get("offset", ["0"])[0])
            part = journal[offset : offset + 100]
            self.send_response(200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), JournalHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", "token")
        result = read_journal(client, {"id": "study"})
        client.close()
        server.shutdown()
    assert [record["n"] for record in result] == list(range(50))


def test_narrow_terminal_omits_parameters_and_names_them() -> None:
    view = StudyView.from_records(
        [
            SPEC,
            *(
                proposal_record(
                    str(at),
                    kind="sgd",
                    learning_rate_of_the_head=0.1 * at,
                    width=at,
                    depth=7,
                    decay=1e-5 * at,
                )
                for at in range(3)
            ),
        ]
    )
    for width in (50, 60, 80):
        lines = trial_table(view, width=width)
        assert all(len(line) <= width for line in lines[:4]), lines
        head = lines[0].split()
        missing = (
            lines[4].removeprefix("not shown for lack of space: ").partition(";")[0].split(", ")
            if len(lines) > 4
            else []
        )
        assert len(head[5:]) + len(missing) == 5
        assert "kind" in missing or "learning_rate…" in head, (
            "parameters equal in all trials are omitted first"
        )
    assert trial_table(view)[0].split()[5:] == [
        "kind",
        "learning_rate_of_the_head",
        "width",
        "depth",
        "decay",
    ]


def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(console, "paint", lambda text, *_: f"\x1b[31m{text}\x1b[0m")
    view = StudyView.from_records(
        [
            SPEC,
            *(
                proposal_record(str(at), learning_rate=0.1 * at, a_long_name_of_a_parameter="x" * 90)
                for at in range(9)
            ),
        ]
    )
    view.apply({"kind": "failed", "trial": "2", "error": "ValueError: " + "too large " * 20, "traceback": ""})
    view.apply(report_record("1", 1, 0.75))
    lines = StudyScreen(view)._lines({})
    assert len(lines) == 13 and all(console.display_width(line) < 60 for line in lines), lines


def test_failure_reason_omits_the_driver_prefix() -> None:
    run = {
        "phase": "failed",
        "exit": {"reason": "replica 0: exit code 1: error: all 3 trials failed: lr is too large\nmore"},
    }
    assert failure_reason(run) == "all 3 trials failed: lr is too large …"
    assert failure_reason({**run, "exit": {"reason": "stopped by request"}}) == "stopped by request"
    assert failure_reason({**run, "phase": "succeeded"}) == ""


def test_limited_table_keeps_training_trials() -> None:
    lines = trial_table(_view(), limit=2)
    assert {line.split()[0] for line in lines[1:3]} == {"0", "1"}
    assert "1 more" in lines[3]


def test_heading_names_the_best_trial() -> None:
    first, second = study_heading(_view())
    assert "3 trials: 1 training, 1 completed, 1 failed" in first
    assert second == "best acc 0.75 by trial 1 after epoch 1: lr=0.01"


def test_gantt_chart_needs_no_colour() -> None:
    lines = drawing.gantt_lines(gantt(_view()), width=60)
    assert lines[0].startswith("0 000") and "111" in lines[0] and lines[0].endswith("95% busy")
    assert lines[1].startswith("1 111") and "..." in lines[1]
    assert lines[-1] == (
        "3 units in 2.1 s, 28.6% idle; from a unit's end to the next one's beginning 100.0 ms "
        "(median), 100.0 ms (99 of 100)"
    )


def _interrupted_view() -> StudyView:
    """A study that was preempted and resumed later."""
    first, second = {**SPEC, "attempt": "run.1"}, {**SPEC, "attempt": "run.2"}
    return StudyView.from_records(
        [
            first,
            hop_record(0, "0", "0", at=0.0),
            hop_record(1, "1", "1", at=0.0),
            second,
            hop_record(2, "1", "0", at=6.0),
            hop_record(3, "0", "1", at=6.0),
        ]
    )


def test_gap_between_two_attempts_is_blank() -> None:
    lines = drawing.gantt_lines(gantt(_interrupted_view()), width=60)
    assert (
        lines[0].startswith("0 00")
        and lines[0].endswith("100% busy")
        and "." not in lines[0]
        and "          " in lines[0]
    )
    assert lines[-1] == "4 units in 2.0 s, 0.0% idle (without 5.0 s between attempts)"


def test_gantt_chart_as_png(tmp_path: Path) -> None:
    drawing.write_png(gantt(_view()), tmp_path / "g.png", title="digits")
    drawing.write_png(gantt(_interrupted_view()), tmp_path / "broken.png", title="digits")
    assert (tmp_path / "g.png").read_bytes()[:4] == b"\x89PNG"
    many = StudyView.from_records([SPEC, *(hop_record(n, str(n), "0", at=1.1 * n) for n in range(60))])
    drawing.write_png(gantt(many), tmp_path / "many.png", title="many trials")
    with pytest.raises(SpecError, match="no unit of work has ended yet"):
        drawing.write_png(gantt(StudyView.from_records([SPEC])), tmp_path / "none.png", title="none")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(("text", "epochs"), [("3", (3, 3)), ("0-2", (0, 2)), (None, None)])
def test_epochs_are_parsed_as_numbers(text: str | None, epochs: tuple[int, int] | None) -> None:
    assert _parse_epochs(text) == epochs


@pytest.mark.parametrize("text", ["", "x", "2-1", "-1", "1-"])
def test_invalid_epochs_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not a range of epochs"):
        _parse_epochs(text)


def test_json_fields_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "search-output.md").read_text()
    data, chart = as_data(_view()), gantt_data(gantt(_view()))
    names = {
        *data,
        *data["trials"][0],
        *chart,
        *chart["workers"][0],
        *chart["workers"][0]["units"][0],
        *data["counts"],
    }
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_searcher_options_are_checked_and_missing_packages_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")

    def study(**more: Any) -> StudySpec:
        return search_from_mapping(
            {"metric": "acc", "script": "train.py", "space": {"lr": "uniform(0, 1)"}, **more}, tmp_path
        ).study

    with pytest.raises(SpecError, match=r"^search\.yaml: space\.lr: a grid needs a number of points"):
        build_searcher(study(searcher="grid"), source_name="search.yaml")
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("tpe", "bohb", {"name": "median", "of": "tpe"}):
        assert build_searcher(study(searcher=name, trials=3, epochs=9)) is None, (
            "the environment of the study may have it"
        )
    (tmp_path / "mine.py").write_text("class Mine: ...\nraise SystemExit\n")
    assert build_searcher(study(searcher={"name": "median", "of": "mine.py:Mine"}, trials=3)) is None, (
        "no user code is run here"
    )
