"""docs/reference/searchers.md names every searcher and option; the searcher of
docs/guides/own-searcher.md passes the suite."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.domain.searchers import SEARCHERS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "searchers.md"
OWN = Path(__file__).parents[2] / "docs" / "guides" / "own-searcher.md"


@pytest.mark.parametrize("name", SEARCHERS)
def test_every_searcher_and_option_is_documented(name: str) -> None:
    text = PAGE.read_text()
    for word in (name, *SEARCHERS[name].options):
        assert f"`{word}`" in text, f"{PAGE.name} says nothing of `{word}`"


@pytest.mark.parametrize("name", ["median", "pbt", "grid"])
def test_documented_defaults_are_correct(name: str) -> None:
    text = PAGE.read_text()
    for key, option in SEARCHERS[name].options.items():
        expected = "-" if option.default is None else str(option.default).lower()
        assert re.search(rf"^\| `{key}` \| {re.escape(expected)} \|", text, re.M), f"{key}: {expected}"


def test_custom_searcher_passes_contract_suite(tmp_path: Path) -> None:
    for name, body in re.findall(r"^```python (\S+)\n(.*?)^```", OWN.read_text(), re.M | re.S):
        (tmp_path / name).write_text(body)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
        str(tmp_path),
    ]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "18 passed" in result.stdout, result.stdout
