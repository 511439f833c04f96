"""Checks of `hop doctor` that need no server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopyard.cli.doctor import check_home
from hopyard.config.home import Home

_ME = os.geteuid()


@pytest.mark.parametrize(
    ("mode", "owner", "named"),
    [(0o755, _ME, ""), (0o777, _ME, "every user"), (0o1777, _ME, ""), (0o1777, 40404, "40404")],
    ids=["closed", "open", "sticky", "of another user"],
)
def test_users_who_can_replace_the_home_are_named(tmp_path: Path, mode: int, owner: int, named: str) -> None:
    if owner != _ME != 0:
        pytest.skip("only root gives folders away")
    above = tmp_path / "above"
    home = Home(above / "between" / "home").create()
    os.chown(above, owner, -1)
    above.chmod(mode)
    result = [
        finding.text
        for finding in check_home(home)
        if finding.check == "parent" and f" {above}," in finding.text
    ]
    assert [text.partition(" can ")[0] for text in result] == ([named] if named else [])
