"""Runs `hop` commands in the process of the test."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hopyard.cli.main import main


class CommandOutput(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def hop(capfd: pytest.CaptureFixture[str], *words: str) -> CommandOutput:
    capfd.readouterr()
    code = main(words)
    out, err = capfd.readouterr()
    return CommandOutput(code, out, err)
