"""Parameters that a process reads, as its import hooks record them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sdk.startup.test_import_hooks import run_python

SWEEP = "import os; dict(os.environ), {**os.environ}, os.environ.copy(), list(os.environ.items())"
PARSER = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr-rate', dest='lr')"
LAUNCHER = f"{PARSER}; p.add_argument('rest', nargs=argparse.REMAINDER)"
OTHER_PROGRAM = "import sys; sys.argv = ['tensorboard', '--logdir', 'x']"
CLICK = (
    "import click\n@click.command()\n@click.option('--lr-rate')\n@click.option('--x')\n"
    "def main(**options): ...\nmain(standalone_mode=False)"
)


@pytest.mark.parametrize(
    ("code", "read", "kinds"),
    [
        (SWEEP, [], {"python", "copy"}),
        (
            "import os; [os.environ[n] for n in ('LR_RATE', 'LR_RATE', 'x')]",
            ["lr", "x"],
            {"python", "variable"},
        ),
        ("import os; os.environ.get('LR_RATE')", ["lr"], {"python", "variable"}),
        ("import os; os.environ['HOPYARD_PARAMS']", ["lr", "x"], {"python", "variable"}),
        (f"{PARSER}; p.parse_known_args()", ["lr"], {"python", "parser"}),
        ("import argparse; argparse.ArgumentParser().parse_known_args()", ["lr"], {"python", "parser"}),
        (f"{PARSER}; p.parse_known_args(['other'])", [], {"python"}),
        (f"{LAUNCHER}; p.parse_known_args()", ["lr"], {"python", "other"}),
        (f"{OTHER_PROGRAM}; {PARSER}; p.parse_known_args()", ["lr"], {"python", "other"}),
        (CLICK, ["lr", "x"], {"python", "parser"}),
    ],
)
def test_reads_are_recorded(code: str, read: list[str], kinds: set[str], tmp_path: Path) -> None:
    words = {"lr": "LR_RATE" if "environ" in code else "--lr-rate", "x": ""}
    result = run_python(
        code,
        tmp_path,
        "--lr-rate",
        "1",
        HOPYARD_REPLICA_DIR=str(tmp_path),
        HOPYARD_PARAMS_GIVEN=json.dumps(words),
        HOPYARD_PARAMS='{"lr": 1, "x": 2}',
        LR_RATE="1",
        x="2",
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (tmp_path / "param-reads").read_text().splitlines()]
    assert sorted(name for line in lines for name in line["read"]) == read
    assert {line["by"] for line in lines} == kinds
