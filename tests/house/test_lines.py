"""Output of commands: `console.out` takes one line, and shows a line break within it as text."""

from __future__ import annotations

import ast

from .tree import modules


def broken_lines(tree: ast.Module) -> list[int]:
    """Where a text with a line break of its own is given to `console.out`."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "console.out"
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and "\n" in part.value
    ]


def test_multi_line_text_is_written_as_lines() -> None:
    assert not {str(path): lines for path, tree in modules().items() if (lines := broken_lines(tree))}, (
        "use console.out_lines"
    )


def test_search_finds_multi_line_text() -> None:
    for code in (
        r'console.out("\n".join(rows))',
        r'console.out(f"a {x}\nb")',
        r'console.out(text.rstrip("\n"))',
    ):
        assert broken_lines(ast.parse(code))
    assert not broken_lines(ast.parse(r'console.out("a"); console.say("a\nb")'))
