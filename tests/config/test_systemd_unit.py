"""Units are valid for systemd, for any name of the home."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.home import Home
from hopyard.config.systemd_unit import home_from_unit, unit_name, unit_text
from hopyard.domain.text import is_line
from hopyard.errors import SpecError

DEFAULT = Home(Path("/home/ada/.hopyard"))
ODD = Home(Path('/srv/100% "odd" $HOME\\x'))


def test_units_of_two_homes_have_two_names() -> None:
    assert unit_name(DEFAULT, DEFAULT) == "hopyard.service"
    names = {unit_name(Home(Path(path)), DEFAULT) for path in ("/a/.hopyard", "/b/.hopyard", "/b/x y", "/")}
    assert len(names) == 4 and all(
        name.startswith("hopyard-") and name.isascii() and " " not in name for name in names
    )


@given(
    st.text(st.characters(blacklist_categories=["Cc", "Cs"]).filter(is_line), min_size=1).map(
        lambda name: Path("/srv") / name.replace("/", "-")
    )
)
def test_home_is_read_back_from_its_unit(root: Path) -> None:
    assert home_from_unit(unit_text(Home(root), python="/usr/bin/python3", path="/usr/bin")) == root


def test_unit_escapes_dollars_in_its_command_only() -> None:
    text = unit_text(ODD, python="/usr/bin/python3", path="/opt/$x")
    assert "$$HOME" in text and 'Environment="PATH=/opt/$x"\n' in text


def test_unit_of_another_user_has_no_log_opened_by_root() -> None:
    assert "append:" not in unit_text(DEFAULT, python="/usr/bin/python3", path="/usr/bin", user="ada")


def test_home_name_with_a_line_break_is_refused() -> None:
    with pytest.raises(SpecError, match="the home"):
        unit_text(Home(Path("/srv/a\nExecStartPre=/bin/x")), python="/usr/bin/python3", path="/usr/bin")


def test_home_of_a_foreign_unit_is_unknown() -> None:
    assert home_from_unit("[Service]\nExecStart=/usr/bin/sleep 1\n") is None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("user", [None, "root"])
def test_units_pass_systemd_analyze(tmp_path: Path, user: str | None) -> None:
    file = tmp_path / "hopyard.service"
    file.write_text(unit_text(ODD, python="/bin/true", path='/a b:/c"d', user=user))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert str(file.name) not in done.stderr and done.returncode == 0, done.stderr
