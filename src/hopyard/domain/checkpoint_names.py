"""Finds the names of the checkpoints that a script saves, by its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

# functions that save a checkpoint, by their whole or last name, with the position and the keyword of the path
_SAVING_FUNCTIONS = {
    "torch.save": (1, "f"),
    "paddle.save": (1, "path"),
    "joblib.dump": (1, "filename"),
    "save_checkpoint": (0, "filepath"),
    "save_weights": (0, "filepath"),
    "save_state": (0, "output_dir"),  # of accelerate
    "ModelCheckpoint": (0, "filepath"),  # of Keras
    "BackupAndRestore": (0, "backup_dir"),
}
# those that also write results; they count in a script that loads such files
_PAIRED_FUNCTIONS = {"pickle.dump": ((1, "file"), "pickle.load")}
_MAX_PATTERNS = 32
_MIN_FIXED_CHARACTERS = 3  # of a pattern: `*.pt` is one, `*` and `*_` would keep nearly all files


def saved_file_patterns(source: str) -> tuple[str, ...]:
    """Returns patterns of file names, as in `RunSpec.checkpoint_files`; none for a source with an error."""
    functions = dict(_SAVING_FUNCTIONS)
    functions |= {name: place for name, (place, other) in _PAIRED_FUNCTIONS.items() if other in source}
    if not any(name.rpartition(".")[2] in source for name in functions):
        return ()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    assigned = _assigned_paths(tree)
    patterns: dict[str, None] = {}
    for node in ast.walk(tree):
        path = _saved_path(node, functions)
        candidates = assigned.get(path.id, [path]) if isinstance(path, ast.Name) else [path] if path else []
        for candidate in candidates:
            name = _path_pattern(candidate, assigned).rstrip("/").rpartition("/")[2]
            if len(name.replace("*", "")) >= _MIN_FIXED_CHARACTERS:
                patterns[name] = None
    return tuple(patterns)[:_MAX_PATTERNS]


def _saved_path(node: ast.AST, functions: Mapping[str, tuple[int, str]]) -> ast.expr | None:
    """Returns the argument of a saving call that is the path."""
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    place = functions.get(name, functions.get(name.rpartition(".")[2]))
    if place is None:
        return None
    position, keyword = place
    if position < len(node.args):
        return node.args[position]
    return next((given.value for given in node.keywords if given.arg == keyword), None)


def _assigned_paths(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """Returns the values that the file assigns to each name, also by `with open(…) as name`. A value that
    contains the name, such as `out = join(folder, out)`, is left out."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.With):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, ast.Name) and not _contains(value, target.id):
                assigned.setdefault(target.id, []).append(value)
    return assigned


def _contains(node: ast.AST, name: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))


def _path_pattern(node: ast.expr, assigned: Mapping[str, Sequence[ast.expr]], depth: int = 0) -> str:
    """Returns the text of a path with `*` for all parts that are known only when the script runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_path_pattern(part, assigned, depth) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add):
        separator = "/" if isinstance(node.op, ast.Div) else ""
        left, right = (_path_pattern(side, assigned, depth) for side in (node.left, node.right))
        return f"{left}{separator}{right}"
    if isinstance(node, ast.Call) and node.args:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ("join", "Path", "joinpath", "str", "open"):
            args = node.args[:1] if name == "open" else node.args
            return "/".join(_path_pattern(arg, assigned, depth) for arg in args)
        if name == "format" and isinstance(node.func, ast.Attribute):
            return re.sub(r"\{[^{}]*\}", "*", _path_pattern(node.func.value, assigned, depth))
    if isinstance(node, ast.Name) and node.id in assigned and depth < 5:
        return _path_pattern(assigned[node.id][-1], assigned, depth + 1)
    return "*"
