"""A user's script may run Python 3.9: the modules that it imports use nothing of a later version."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.tree import PACKAGE, modules

OLDEST = (3, 9)
# modules of the SDK that only `hop sync` and the replica import
OTHER_PROGRAMS = tuple(
    f"hopyard.sdk.{name}" for name in ("sync_offline", "limited_streams", "report_limit", "output_limit")
)
# imported behind a check of the version
NEWER_ROOMS = ("hopyard.api_client", "hopyard.datasets")
NEWER_NAMES = {
    "dataclasses": {"KW_ONLY"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "EnumCheck", "verify", "member", "nonmember"},
    "itertools": {"pairwise", "batched"},
    "typing": {"Self", "TypeAlias", "ParamSpec", "Concatenate", "TypeGuard", "NotRequired", "Required"}
    | {"Never", "LiteralString", "assert_never", "assert_type", "reveal_type", "override", "Unpack"},
    "contextlib": {"aclosing", "chdir"},
    "types": {"UnionType", "NoneType", "EllipsisType"},
    "operator": {"call"},
    "inspect": {"get_annotations"},
}
NEWER_BUILTINS = {"aiter", "anext", "BaseExceptionGroup", "ExceptionGroup", "EncodingWarning"}
NEWER_ATTRIBUTES = {"add_note", "bit_count", "orig_argv", "stdlib_module_names", "file_digest", "TaskGroup"}
SCRIPT = """
import os, sys
import hopyard as hop

class Model:
    weights = 0.0

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]

params = hop.params(rate=0.5, epochs=3, name="a")
model = Model()
hop.bind(model=model)
for epoch in hop.loop(range(params.epochs)):
    model.weights += params.rate
    hop.log(loss=1 / model.weights, step=epoch)
    hop.log(text=hop.Text("a"), counts=hop.Histogram([1.0, 2.0]), table=hop.Table([[1]], ["a"]), step=epoch)
    hop.save(step=epoch)
hop.summary(weights=model.weights)
assert model.weights == 1.5, model.weights
try:
    hop.log(loss="high")
except Exception as error:
    assert "loss" in str(error), error
print(*sorted(name for name in sys.modules if name.split(".")[0] == "hopyard"))
"""


def is_skipped(name: str) -> bool:
    return name in OTHER_PROGRAMS or any(f"{name}.".startswith(f"{room}.") for room in NEWER_ROOMS)


def test_modules_of_scripts_use_nothing_newer() -> None:
    found = [
        f"{name}:{line}: {what}" for name in imported_modules() for line, what in newer_parts(tree_of(name))
    ]
    assert not found, "import it from hopyard.backports, or write it in another form:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "match x:\n    case 1: pass",
        "A = int | None",
        "isinstance(x, int | str)",
        "from enum import StrEnum",
        "zip(a, b, strict=True)",
        "from dataclasses import dataclass\n@dataclass(slots=True)\nclass A: ...",
        "x.bit_count()",
        "import tomllib",
    ],
)
def test_newer_parts_are_found(code: str) -> None:
    assert any(newer_parts(ast.parse(code)))


def test_script_imports_only_checked_modules(tmp_path: Path) -> None:
    """Modules that are imported by name at run time are in the set, too."""
    assert set(run_script(sys.executable, tmp_path)) <= set(imported_modules())


def test_script_runs_under_python_39(tmp_path: Path) -> None:
    python = find_python(OLDEST)
    if python is None:
        pytest.skip("this machine has no Python 3.9")
    assert "hopyard.sdk.session" in run_script(python, tmp_path)
    imports = "\n".join(f"import {name}" for name in imported_modules() if "startup" not in name)
    result = start(python, imports, tmp_path)
    assert result.returncode == 0, result.stderr


def test_newer_names_have_a_clear_error_under_python_39(tmp_path: Path) -> None:
    python = find_python(OLDEST)
    if python is None:
        pytest.skip("this machine has no Python 3.9")
    result = start(python, "import hopyard\nhopyard.submit", tmp_path)
    assert "hopyard.submit needs Python 3.11 or newer" in result.stderr


def test_older_python_has_a_clear_error(tmp_path: Path) -> None:
    python = find_python((3, 8)) or find_python((3, 7))
    if python is None:
        pytest.skip("this machine has no older Python")
    result = start(python, "import hopyard", tmp_path)
    assert "hopyard needs Python 3.9 or newer" in result.stderr


@cache
def imported_modules() -> tuple[str, ...]:
    """Returns the modules that a script can import, directly or by others."""
    files = {module_name(path) for path in modules()}
    waiting = ["hopyard", *(name for name in sorted(files) if name.startswith("hopyard.sdk"))]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in files and name not in found and not is_skipped(name):
            found.add(name)
            waiting += imports_of(tree_of(name))
    return tuple(sorted(found))


def module_name(path: Path) -> str:
    return ".".join(("hopyard", *path.with_suffix("").parts)).removesuffix(".__init__")


@cache
def trees() -> dict[str, ast.Module]:
    return {module_name(path): tree for path, tree in modules().items()}


def tree_of(name: str) -> ast.Module:
    return trees()[name]


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in executed(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: length + 1]) for length in range(len(parts)))


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that Python 3.9 evaluates: no annotations, and no branch for type checkers or newer
    versions."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        if isinstance(node, ast.If) and field == "body" and is_newer_branch(node.test):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from executed(child)


def is_newer_branch(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return text in ("TYPE_CHECKING", "sys.version_info >= (3, 10)", "sys.version_info >= (3, 11)")


def newer_parts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and description of each part that Python 3.9 lacks."""
    own = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "hopyard.backports"
        for alias in node.names
    }
    for node in executed(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Match | ast.TryStar):
            yield line, "a newer statement"
        elif isinstance(node, ast.Import) and any(alias.name == "tomllib" for alias in node.names):
            yield line, "tomllib"
        elif isinstance(node, ast.ImportFrom):
            for name in NEWER_NAMES.get(node.module or "", set()) & {alias.name for alias in node.names}:
                yield line, f"{node.module}.{name}"
        elif isinstance(node, ast.Name) and node.id in NEWER_BUILTINS:
            yield line, node.id
        elif isinstance(node, ast.Attribute) and node.attr in NEWER_ATTRIBUTES:
            yield line, node.attr
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and is_type(node):
            yield line, "a union of types that is evaluated"
        elif isinstance(node, ast.Call):
            words = {keyword.arg for keyword in node.keywords}
            name = ast.unparse(node.func)
            if name == "zip" and "strict" in words and "zip" not in own:
                yield line, "zip(strict=…)"
            if name == "dataclass" and (("slots" in words and name not in own) or "kw_only" in words):
                yield line, "dataclass(slots=…, kw_only=…)"


def is_type(node: ast.expr) -> bool:
    """Returns whether an operand of `|` is a type: None, or a name as types have it."""
    if isinstance(node, ast.BinOp):
        return is_type(node.left) or is_type(node.right)
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    if isinstance(node, ast.Constant):
        return node.value is None
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("int", "float", "str", "bool", "bytes", "list", "tuple", "dict", "set") or (
        name[:1].isupper() and not name.isupper()
    )


@cache
def find_python(version: tuple[int, int]) -> str | None:
    """Returns an interpreter of this version: on the path, or of pyenv."""
    text = ".".join(map(str, version))
    folder = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [shutil.which(f"python{text}"), *map(str, folder.glob(f"{text}.*/bin/python"))]
    for python in filter(None, candidates):
        code = "import sys; print(sys.version)"
        result = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
        if result.returncode == 0 and result.stdout.startswith(f"{text}."):
            return python
    return None


def run_script(python: str, folder: Path) -> list[str]:
    """Runs a script that uses the SDK offline; returns the modules of Hopyard that it imported."""
    result = start(python, SCRIPT, folder)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].split()


def start(python: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "main.py").write_text(code)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HOPYARD_", "PYTHON"))}
    variables |= {"PYTHONPATH": str(PACKAGE.parent), "HOPYARD_HOME": str(folder / "home")}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        [python, "main.py"],
        check=False,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
