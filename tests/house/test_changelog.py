"""Changelog fragments: `changelog.d/ISSUE.KIND.md` or `changelog.d/+NAME.KIND.md`, one entry each."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from .tree import ROOT

FRAGMENTS = ROOT / "changelog.d"
KINDS = tuple(
    kind["directory"]
    for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
)
NAME = re.compile(rf"([0-9]+|\+[a-z0-9][a-z0-9-]*)\.({'|'.join(KINDS)})(\.[0-9]+)?\.md")
MAX_LINE = 100


def problems(name: str, text: str) -> list[str]:
    """Returns what is wrong with a fragment."""
    result = []
    if not NAME.fullmatch(name):
        result.append(f"the name is not ISSUE.KIND.md or +NAME.KIND.md with a kind of {', '.join(KINDS)}")
    if not re.match(r"[A-Z`]", text) or not text.endswith(".\n"):
        result.append("the text is not sentences that end with a full stop")
    if "\n\n" in text or text.startswith(("-", "#")):
        result.append("the text is more than one entry")
    if any(len(line) > MAX_LINE for line in text.splitlines()):
        result.append(f"a line is longer than {MAX_LINE} characters")
    return result


@pytest.mark.parametrize("file", sorted(FRAGMENTS.iterdir()), ids=lambda file: file.name)
def test_fragment_is_well_formed(file: Path) -> None:
    assert problems(file.name, file.read_text()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("12.new.md", "A sentence.\n"),
        ("entry.md", "A sentence.\n"),
        ("12.added.md", "no capital letter.\n"),
        ("12.added.md", "No full stop\n"),
        ("12.added.md", "- A list.\n"),
        ("12.added.md", "One.\n\nTwo.\n"),
        ("12.added.md", "x" * 101),
    ],
)
def test_malformed_fragment_is_found(name: str, text: str) -> None:
    assert problems(name, text)
