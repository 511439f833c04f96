"""The repository as its tests see it."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hopyard"


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module of the package, parsed; paths below the package."""
    return {
        path.relative_to(PACKAGE): ast.parse(path.read_text(), str(path))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imported(tree: ast.Module) -> set[str]:
    """The top-level names of the modules that this one imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def tracked() -> Iterator[Path]:
    """Files that git knows, or would add. Whoever owns the checkout (`safe.directory`)."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in sorted(set(filter(None, listed.stdout.decode().split("\0")))):
        path = ROOT / name
        if path.is_file():
            yield path
