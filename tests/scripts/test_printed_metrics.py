"""A script that only prints its metrics: run, forked, ranked and searched."""

from __future__ import annotations

from tests.cli.shell import Shell

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


def test_printed_metric_is_searched(scripts: Shell) -> None:
    study = scripts.hop(
        *("search", "-p", "lr=0.1,0.3", "--searcher", "grid", "--metric", "val_loss"),
        *("--metric-line", LINE, "prints_metrics.py"),
    )
    assert study.code == 0, study.stderr_text
    assert "best val_loss 0 by trial 1" in study.text + study.stderr_text


def test_bad_template_is_refused_before_the_submission(scripts: Shell) -> None:
    refused = scripts.hop("run", "--metric-line", "loss", "prints_metrics.py")
    assert refused.code != 0
    assert "--metric-line: `loss` names no metric" in refused.stderr_text
