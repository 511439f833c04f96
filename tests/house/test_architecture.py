"""The shape of the house: import directions, words, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .tree import ROOT, modules

FORBIDDEN = {"util", "utils", "helper", "helpers", "misc"}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def test_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    told = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def defined(tree: ast.Module) -> Iterator[str]:
    """Every name that the module gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def test_words_that_say_nothing_are_not_used_as_names() -> None:
    found = []
    for path, tree in modules().items():
        names = {*defined(tree), path.stem, *path.parent.parts}
        found += [
            f"{path}: {name}"
            for name in sorted(names)
            if FORBIDDEN & {word.lower() for word in WORD.findall(name)}
        ]
    assert not found, "DESIGN section 5 has better words"


def test_every_module_says_what_it_is() -> None:
    """In its own docstring, or, where it holds one class, in that one's."""
    silent = []
    for path, tree in modules().items():
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        if not ast.get_docstring(tree) and not any(ast.get_docstring(one) for one in classes):
            silent.append(str(path))
    assert not silent


def test_every_package_is_a_docstring_only() -> None:
    """So that importing a part never imports the whole. `hopyard` and `hopyard.spark` hold the public API."""
    full = []
    for path, tree in modules().items():
        if path.name == "__init__.py" and path.parent not in (Path(), Path("spark")):
            rest = [
                node
                for node in tree.body
                if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            ]
            if rest:
                full.append(str(path))
    assert not full


def test_no_unfinished_code() -> None:
    """No stubs, and no notes to oneself: what is missing is said in an issue."""
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        str(path)
        for path, tree in modules().items()
        if marks.search((ROOT / "src/hopyard" / path).read_text()) or list(stubs(tree))
    ]
    assert not found


def stubs(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node):
            yield node


def test_tests_use_no_mocks() -> None:
    """DESIGN section 8: real parts, or the shipped fakes."""
    mock = re.compile(
        r"^\s*(from unittest import .*\bmock\b|from unittest\.mock|import unittest\.mock|import mock\b)", re.M
    )
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if mock.search(path.read_text())
    ]
    assert not found
