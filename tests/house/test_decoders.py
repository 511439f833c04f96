"""Types are decoded by decoders that are made at the import of a module, while no other thread needs them."""

from __future__ import annotations

import ast
from pathlib import Path

import hopyard

SOURCES = Path(hopyard.__file__).parent


def _prepares_at_first_use(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("msgspec.json.decode", "msgspec.msgpack.decode")
        and any(keyword.arg == "type" for keyword in node.keywords)
    )


def test_no_type_is_prepared_when_it_is_first_decoded() -> None:
    """msgspec publishes the fields of a type before it has prepared them: a second thread that decodes the
    type then reads a null pointer."""
    found = [
        f"{path.relative_to(SOURCES)}:{getattr(node, 'lineno', 0)}"
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if _prepares_at_first_use(node)
    ]
    assert found == [], "use a msgspec.json.Decoder that is made at the import"
