"""`hop usage` as a table, CSV and JSON."""

from __future__ import annotations

import csv
import io

from tests.cli.shell import Shell


def test_usage_by_project_counts_removed_runs(shell: Shell) -> None:
    run = shell.detach("-n", "counted", "--", "true")
    project = run.split("/")[1]
    assert shell.hop("logs", "-f", run).code == 0

    def attempts() -> int:
        rows = shell.hop("usage", "--by", "project", "--from", "1d", "--json").json
        return sum(row["attempts"] for row in rows if row["project"] == project)

    before = attempts()
    assert before >= 1
    assert shell.hop("rm", "-y", run).code == 0
    assert attempts() == before
    head, *rows = shell.hop("usage", "--by", "user,project,day").text.splitlines()
    assert head.split() == ["DAY", "USER", "PROJECT", "ATTEMPTS", "GPU-HOURS", "CPU-HOURS", "GIB-HOURS"]
    assert any(project in row.split() for row in rows)
    (row,) = csv.DictReader(
        io.StringIO(
            shell.hop("usage", "--by", "month", "--from", "today", "--to", "2999-01-01", "--csv").text
        )
    )
    assert float(row["held_s"]) > 0 and "user" not in row


def test_usage_refuses_unknown_keys_and_future_times(shell: Shell) -> None:
    for words, said in (
        (("--by", "colour"), "allowed: user, queue, project, day, week, month"),
        (("--by", "day,week"), "day and week exclude each other"),
        (("--from", "2999-01-01"), "--from: `2999-01-01` is in the future"),
        (("--from", "soon"), "--from: `soon` is not a time"),
        (("--csv", "--json"), "--csv and --json exclude each other"),
    ):
        refused = shell.hop("usage", *words)
        assert refused.code == 2 and said in refused.stderr_text
