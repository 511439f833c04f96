"""A script that only prints its metrics: run, killed, resumed, forked, ranked and searched."""

from __future__ import annotations

import csv
import re

from tests.cli.shell import Shell
from tests.scripts.attempts import METRIC_LINE, check_attempts

LINE = "Epoch {step} | val loss {val_loss} | {} ms"


def test_printed_metrics_are_compared_and_ranked(scripts: Shell) -> None:
    (scripts.folder / "data").mkdir()
    (scripts.folder / "data" / "a.txt").write_text("a")
    scripts.hop("dataset", "push", "printed", "data")
    words = ("-n", "one", "-d", "printed", "--metric-line", LINE, "prints_metrics.py")
    first = scripts.hop("run", *words)
    assert first.code == 0, first.stderr_text
    assert scripts.hop("fork", "one", "-n", "two", "-p", "lr=0.2").code == 0
    assert "0.1  ->  0.05" in scripts.hop("diff", "one", "two").text
    rows = scripts.hop("board", "printed", "--json").json["rows"]
    assert [(row["value"], row["step"]) for row in rows] == [(0.05, 2), (0.1, 2)]


def test_resumed_script_continues_its_printed_metrics(scripts: Shell) -> None:
    values = {"batch_size": 64, "layers": [1], "lr": 0.5, "no_cuda": False}
    killed = check_attempts(scripts, "-p lr=0.5 argparse_train.py", values, METRIC_LINE)
    name = re.search(r"(\S+) failed after", killed.stderr_text)
    assert name is not None, killed.stderr_text
    points = []
    for run in (name[1], "last"):
        assert scripts.hop("pull", "--metrics", "--force", run, "got").code == 0
        rows = csv.DictReader((scripts.folder / "got/metrics/metrics.csv").read_text().splitlines())
        points.append([(row["name"], int(row["step"]), float(row["value"])) for row in rows])
    assert points == [[("loss", 0, 0.4), ("loss", 1, 0.2)], [("loss", 2, 0.4)]]


def test_printed_metric_is_searched(scripts: Shell) -> None:
    study = scripts.hop(
        *("search", "-p", "lr=0.1,0.2,0.3,0.5", "--searcher", "grid", "--metric", "val_loss"),
        *("--epochs", "2", "--metric-line", LINE, "prints_metrics.py"),
    )
    assert study.code == 0, study.stderr_text
    shown = scripts.hop("search", "show", "--json").json
    points = {trial["params"]["lr"]: trial["points"] for trial in shown["trials"]}
    first, second = {0.1: 0.2, 0.2: 0.1, 0.3: 0.0, 0.5: 0.2}, {0.1: 0.1, 0.2: 0.05, 0.3: 0.0, 0.5: 0.1}
    assert points == {lr: [[1, first[lr]], [2, second[lr]]] for lr in first}
    assert shown["best"] == "2"


def test_bad_template_is_refused_before_the_submission(scripts: Shell) -> None:
    refused = scripts.hop("run", "--metric-line", "loss", "prints_metrics.py")
    assert refused.code != 0
    assert "--metric-line: `loss` names no metric" in refused.stderr_text
