"""Checks the Python files that a study names before they are uploaded: they are compiled, never run."""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, format_given


def check_code(top: YamlSection, key: str, path: Path, *, shown_as: str) -> ast.Module | None:
    """Returns the syntax tree of the file. Returns None if only the study's own version of Python, which
    differs from this one, can parse it. Raises SpecError naming `key`, the file as `shown_as` and the
    line."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise top.error(key, f"{shown_as} cannot be read: {error.strerror}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, shown_as, "exec", dont_inherit=True)
            return ast.parse(source, filename=shown_as)
    except (SyntaxError, ValueError, RecursionError) as error:
        if _uses_other_python(top):
            return None
        line, hints = "", []
        if isinstance(error, SyntaxError) and error.lineno:
            line = f" (line {error.lineno})"
            hints = [f"the line is: {error.text.strip()}"] if error.text and error.text.strip() else []
        raise top.error(
            key, f"{shown_as} is not Python{line}: {getattr(error, 'msg', error)}", *hints
        ) from None


_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAME = re.compile(r"[^\W\d]\w*")


def check_reference(
    top: YamlSection, key: str, text: str, folder: Path, *, functions: tuple[str, ...] = ()
) -> None:
    """Checks a reference of a study: `file.py:Name`, `module:Name`, or a file alone, which must have these
    functions. A file of the code must exist, be Python and define the name. Raises SpecError."""
    path_text, colon, name = text.partition(":")
    if (colon and not _NAME.fullmatch(name)) or not (
        path_text.endswith(".py") or _MODULE.fullmatch(path_text)
    ):
        raise top.error(
            key, f"{format_given(text)} names nothing", "write file.py:Name, module:Name, or file.py"
        )
    if not path_text.endswith(".py"):
        path_text = f"{path_text.replace('.', '/')}.py"
        if not (folder / path_text).is_file():
            return  # of a package that is installed
    path = folder / path_text
    check_within_code(top, key, path_text)
    check_path_base(top, key, path_text, folder)
    if not path.is_file():
        raise top.error(key, f"{format_given(path_text)} does not exist", *_similar_file_hints(path, folder))
    tree = check_code(top, key, path, shown_as=path_text)
    names = None if tree is None else module_names(tree)
    for required in (name,) if name else functions:
        if names is not None and required not in names:
            hints = unknown_name_hints(
                required, sorted(n for n in names if not n.startswith("_")), subject="names there"
            )
            if not name:
                hints = (*hints, f"or give an object or a class in it: {path_text}:Name")
            raise top.error(key, f"{path_text} has no `{required}`", *hints)


def _similar_file_hints(path: Path, folder: Path) -> tuple[str, ...]:
    """Returns hints for a file that does not exist."""
    if path.parent != folder and (folder / path.name).is_file():
        return (f"did you mean `{path.name}`? Paths count from the current folder",)
    similar = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
    return unknown_name_hints(path.name, similar, subject="files there")[:1]


def check_within_code(top: YamlSection, key: str, path: str) -> None:
    """Raises SpecError for a path outside the folder of the code: only that folder is uploaded with a
    study."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise top.error(
            key,
            f"{format_given(path)} is not inside the folder of the code",
            "give a path relative to the folder that travels with the study",
        )


def check_path_base(top: YamlSection, key: str, path: str, folder: Path) -> None:
    """Checks a path against the current folder, which is the code wherever the search file is. Raises
    SpecError for a file that exists only beside the search file."""
    file_folder = Path(top.file).parent
    if file_folder != Path() and not (folder / path).is_file() and (file_folder / path).is_file():
        hint = f"it lies beside {Path(top.file).name}: cd {file_folder}, and start the study there"
        raise top.error(
            key,
            f"{format_given(path)} does not exist in the current folder, which is the code that travels with "
            "the study",
            hint,
        )


def check_command(top: YamlSection, key: str, command: Iterable[str], folder: Path) -> None:
    """Checks the script that a command runs, if it is a file of the code. Raises SpecError."""
    script = next((word for word in command if word.endswith(".py")), "")
    if script and (folder / script).is_file():
        check_code(top, key, folder / script, shown_as=script)


def module_names(tree: ast.Module) -> frozenset[str] | None:
    """Returns the names that a file binds at its top level, or may bind. Returns None where they are known
    only by running it."""
    if any(isinstance(node, ast.Global) for node in ast.walk(tree)):
        return None
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        # names in there are their own
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)


def _uses_other_python(top: YamlSection) -> bool:
    """Returns whether the study may run on another version of Python than this, whose syntax may be newer."""
    own_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if "python" in top.values:
        return str(top.values["python"]) not in (own_version, f"{own_version}.{sys.version_info.micro}")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        python = Path(os.environ.get(variable) or "/nowhere", "bin", "python")
        if python.exists():
            return (
                python.resolve().name != f"python{own_version}"
                and python.resolve() != Path(sys.executable).resolve()
            )
    return False
