"""Checks of names: complete texts, with rules defined in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .tree import modules


def patterns(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Returns the texts in `re.…(…)`, `entire(…)` and `pattern=…`, including those with placeholders."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            arguments = [*node.args[:1]] if name.startswith("re.") or name == "entire" else []
            for value in [
                *arguments,
                *(keyword.value for keyword in node.keywords if keyword.arg == "pattern"),
            ]:
                for part in ast.walk(value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
                        yield (
                            node.lineno,
                            part.value if isinstance(part.value, str) else part.value.decode("latin-1"),
                        )


def end_mark(pattern: str) -> bool:
    """Returns whether a pattern has a `$` that is neither escaped nor in a character class."""
    return "$" in re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", pattern)


@pytest.mark.parametrize(
    ("pattern", "found"), [("^a$", True), (r"a\$", False), ("[$a]", False), ("a(b|$)", True), (r"a\Z", False)]
)
def test_end_marks_are_found(pattern: str, found: bool) -> None:
    assert end_mark(pattern) is found


def test_no_pattern_ends_before_a_line_break() -> None:
    """`$` also matches before a final line break, so a name with one would pass. Use `fullmatch`, or an end
    written as `\\Z`."""
    result = [
        f"{module}:{line}: {pattern}"
        for module, tree in modules().items()
        for line, pattern in patterns(tree)
        if end_mark(pattern)
    ]
    assert result == []


def test_no_pattern_uses_re_match() -> None:
    result = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "match"
    ]
    assert result == [], "use fullmatch, or search with `^`"
