"""The syntax trees of a script and of the modules of its folder that it imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_MAX_MODULES = 100
_MAX_SOURCE_BYTES = 2_000_000

ReadSource = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class SourceTree:
    """One module. path: relative to the folder of the code."""

    path: str
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)  # local name → imported name, with its module

    def resolve(self, node: ast.AST) -> str:
        """Returns the full name of an expression such as `flags.DEFINE_float`; "" for others."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return f"{base}.{node.attr}" if base else f".{node.attr}"
        return ""

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Yields each call with the full name of its function."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield self.resolve(node.func), node


def read_sources(script: str, read: ReadSource) -> list[SourceTree]:
    """Returns the script and the modules of its folder that it imports, nearest first. A file that is not
    valid Python is left out."""
    found: dict[str, SourceTree] = {}
    queue = [script]
    while queue and len(found) < _MAX_MODULES:
        path = queue.pop(0)
        if path in found:
            continue
        source = read(path)
        if source is None or len(source) > _MAX_SOURCE_BYTES:
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        module = SourceTree(path, tree)
        found[path] = module
        for name, base in _imports(module):
            queue += [p for p in _candidates(name, base, script) if p not in found]
    return list(found.values())


def _imports(module: SourceTree) -> Iterator[tuple[str, str]]:
    """Yields the name of each imported module, and the folder that a relative name counts from. Records the
    local names."""
    folder = module.path.rpartition("/")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                module.names[local] = alias.name if alias.asname else local
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            base = ""
            if node.level:
                parts = folder.split("/") if folder else []
                base = "/".join(parts[: len(parts) - node.level + 1]) or "."
            name = node.module or ""
            for alias in node.names:
                module.names[alias.asname or alias.name] = f"{name}.{alias.name}" if name else alias.name
                yield f"{name}.{alias.name}" if name else alias.name, base
            if name:
                yield name, base


def _candidates(name: str, base: str, script: str) -> list[str]:
    path = name.replace(".", "/")
    roots = [base] if base else [script.rpartition("/")[0], "", "src"]
    return [
        f"{root}/{path}{end}".removeprefix("./").removeprefix("/")
        for root in roots
        for end in (".py", "/__init__.py")
    ]


def constant_text(node: ast.AST | None) -> str:
    """Returns a constant that is a text; "" for other expressions."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def expression_text(node: ast.AST | None) -> str:
    """Returns a constant, or the last name of an expression, as text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def list_count(nargs: str) -> int:
    """Returns how many words an option takes, from its `nargs`; 0 for any number."""
    return int(nargs) if nargs.isdecimal() and len(nargs) < 4 else 0
