"""`hop board` and `hop dataset board`: the leaderboard of a dataset."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import click

from hopyard.cli.options import complete_dataset, json_option
from hopyard.cli.terminal import console
from hopyard.config.key_values import format_value
from hopyard.domain.text import escape

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("board")
@click.argument("name", metavar="DATASET", shell_complete=complete_dataset)
@click.option(
    "-m",
    "--metric",
    help="Rank by this metric: a summary, or any logged metric.  [default: the dataset's, or the most used]",
)
@click.option(
    "--last",
    "value",
    flag_value="last",
    help="Rank by the last logged value.  [default: the summary, else the last logged value]",
)
@click.option("--best", "value", flag_value="best", help="Rank by the best logged value.")
@click.option("--max", "direction", flag_value="max", help="Higher values are better.")
@click.option("--min", "direction", flag_value="min", help="Lower values are better.")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of rows."
)
@json_option
def board(
    name: str,
    metric: str | None,
    value: Literal["last", "best"] | None,
    direction: Literal["min", "max"] | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the leaderboard of DATASET: one result of each run, the best run first.

    The result is the run's summary, else the last value that it logged.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import check_name

    check_name(name, subject="dataset")
    leaderboard = connect().get_dataset_board(
        _quote(name), metric=metric, limit=limit, value=value, direction=direction
    )
    if as_json:
        console.print_json(leaderboard)
    elif not leaderboard["rows"]:
        console.print_message(
            f"no run on {name} has logged {f'`{metric}`' if metric else 'a metric'} yet; call "
            "`hop.summary(val_acc=…)` or `hop.log(val_acc=…)` in a script to record one, or read it from "
            "the script's output with `hop run --metric-line 'accuracy {val_acc}'`"
        )
    else:
        console.print_lines(leaderboard_lines(leaderboard))


def leaderboard_lines(leaderboard: api.BoardOut) -> list[str]:
    """Returns the table. Values that all rows share (one user, one version) are omitted; parameters that
    differ are shown.
    """
    rows = leaderboard["rows"]
    direction = "higher is better" if leaderboard["higher_is_better"] else "lower is better"
    steps = any(row.get("step") is not None for row in rows)
    differing = _differing_params([row.get("params") or {} for row in rows])
    users, versions = {row["user"] for row in rows}, {row["version"] for row in rows}
    labels = any(row.get("label") for row in rows)
    head = ["#", escape(leaderboard["metric"]), *["STEP"] * steps, "RUN"]
    head += (
        ["LABEL"] * labels
        + ["USER"] * (len(users) > 1)
        + ["VERSION"] * (len(versions) > 1)
        + ["PARAMS"] * bool(differing)
    )
    cells = []
    for row in rows:
        step = row.get("step")
        line = [str(row["rank"]), console.format_number(row["value"])]
        line += ["" if step is None else str(step)] * steps + [row["name"]]
        line += (
            [row.get("label") or ""] * labels
            + [row["user"]] * (len(users) > 1)
            + [str(row["version"])] * (len(versions) > 1)
        )
        line += [
            "  ".join(
                f"{key}={format_value(row['params'][key])}"
                for key in differing
                if key in (row.get("params") or {})
            )
        ] * bool(differing)
        cells.append(line)
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return [
        *console.format_table(head, cells, right=(0, 1, 2) if steps else (0, 1), width=width),
        console.paint(f"by {_source_text(rows)}{escape(leaderboard['metric'])}, {direction}", "dim"),
    ]


def _source_text(rows: Sequence[api.RowOut]) -> str:
    sources = {row.get("source", "summary") for row in rows}
    return "the best value of " if "best" in sources else "the last value of " if sources == {"last"} else ""


def _differing_params(params: Sequence[Mapping[str, object]]) -> list[str]:
    keys = dict.fromkeys(key for row in params for key in row)
    return [key for key in keys if len({repr(row.get(key)) for row in params}) > 1]


def _quote(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
