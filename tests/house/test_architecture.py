"""The shape of the house: import directions, words, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .tree import ROOT, is_generated, modules

WORD = re.compile(r"MLflow|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
FIELD_TERMS = Path(__file__).with_name("field_terms.txt")
EMPTY_WORDS = {"util", "utils", "helper", "helpers", "misc", "common", "stuff", "thing", "things"}
SAME_NAME = {
    "Run": "`hopyard.client` gives Python's `Run`, which users hold; the record is the domain's",
    "Study": "`hopyard.spark.Study` is the users' API of Spark; `hopyard.client` gives Python's `Study`",
}


def test_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def words_of(name: str) -> set[str]:
    """Returns the words of an identifier, in lower case: `GpuShare` has `gpu` and `share`."""
    return {word.lower() for word in WORD.findall(name)}


def glossary() -> set[str]:
    """Returns the words that docs/concepts/glossary.md defines, in the singular and in the plural."""
    page = (ROOT / "docs" / "concepts" / "glossary.md").read_text()
    headings = re.findall(r"^\*\*([^*]+)\*\*", page, re.MULTILINE)
    terms = {word for heading in headings for word in words_of(heading)}
    return (
        terms | {f"{term}s" for term in terms} | {f"{term[:-1]}ies" for term in terms if term.endswith("y")}
    )


def field_terms() -> list[str]:
    return FIELD_TERMS.read_text().split()


def test_file_and_class_names_are_field_terms() -> None:
    """A word is defined in the glossary or listed in tests/house/field_terms.txt.
    Metaphors, pronouns and moods do not belong in that list."""
    known_words = glossary() | set(field_terms())
    unknown = []
    for path, tree in modules().items():
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        stem = path.stem if "versions" not in path.parts else ""  # a database refers to migrations by name
        for name in sorted({*classes, stem, *path.parent.parts}):
            unknown += [f"{path}: `{word}` of {name}" for word in sorted(words_of(name) - known_words)]
    assert not unknown, "use a word of the glossary, or add the field's term to tests/house/field_terms.txt"


def test_list_of_field_terms_is_sorted_and_has_no_empty_words() -> None:
    terms = field_terms()
    assert terms == sorted(set(terms))
    assert not EMPTY_WORDS & set(terms)


def test_public_classes_of_different_rooms_have_different_names() -> None:
    """Two classes may share a name if one is the contract of the other, a base class of that name. A
    generated type has the name of the server's class that describes the same JSON."""
    rooms: dict[str, dict[str, bool]] = {}
    for path, tree in modules().items():
        if is_generated(tree):
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                rooms.setdefault(node.name, {})[path.parts[0]] = bool(bases & {node.name, "Protocol"})
    shared = {
        name: sorted(places)
        for name, places in rooms.items()
        if list(places.values()).count(False) > 1 and name not in SAME_NAME
    }
    assert not shared
    assert not set(SAME_NAME) - set(rooms), "an exemption without a class"


def test_every_module_has_docstring() -> None:
    """In its own docstring, or in the docstring of its only class."""
    silent = []
    for path, tree in modules().items():
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        if not ast.get_docstring(tree) and not any(ast.get_docstring(cls) for cls in classes):
            silent.append(str(path))
    assert not silent


def test_every_package_is_a_docstring_only() -> None:
    """Importing a part must not import the whole package. `hopyard` and `hopyard.spark` hold the public
    API."""
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
    """No stubs and no notes such as to-do comments: missing work belongs in an issue."""
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    result = [
        str(path)
        for path, tree in modules().items()
        if marks.search((ROOT / "src/hopyard" / path).read_text()) or list(stubs(tree))
    ]
    assert not result


def stubs(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node):
            yield node


def test_tests_use_no_mocks() -> None:
    """DESIGN section 8: real parts, or the shipped fakes."""
    mock = re.compile(
        r"^\s*(from unittest import .*\bmock\b|from unittest\.mock|import unittest\.mock|import mock\b)", re.M
    )
    result = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if mock.search(path.read_text())
    ]
    assert not result
