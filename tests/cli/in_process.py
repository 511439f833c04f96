"""Runs `hop` in process, as a test would type it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hopyard.cli.main import main


class Typed(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


def hop(capfd: pytest.CaptureFixture[str], *words: str) -> Typed:
    capfd.readouterr()
    code = main(words)
    out, err = capfd.readouterr()
    return Typed(code, out, err)
