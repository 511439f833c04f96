"""Finds the names of the checkpoints that a script saves, by its syntax tree."""

from __future__ import annotations

import ast
import re

# functions that save a checkpoint, by their whole or last name, and the position of the path
_SAVING_FUNCTIONS = {
    "torch.save": 1,
    "paddle.save": 1,
    "joblib.dump": 1,
    "save_checkpoint": 0,
    "save_weights": 0,
}
_MAX_PATTERNS = 32
_MIN_FIXED_CHARACTERS = 3  # of a pattern: `*.pt` is one, `*` and `*_` would keep nearly all files


def saved_file_patterns(source: str) -> tuple[str, ...]:
    """Returns patterns of file names, as in `RunSpec.checkpoint_files`; none for a source with an error."""
    if not any(name.rpartition(".")[2] in source for name in _SAVING_FUNCTIONS):
        return ()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    assigned = _assigned_paths(tree)
    patterns: dict[str, None] = {}
    for node in ast.walk(tree):
        path = _saved_path(node)
        if path is not None:
            name = _path_pattern(path, assigned).rpartition("/")[2]
            if len(name.replace("*", "")) >= _MIN_FIXED_CHARACTERS:
                patterns[name] = None
    return tuple(patterns)[:_MAX_PATTERNS]


def _saved_path(node: ast.AST) -> ast.expr | None:
    """Returns the argument of a saving call that is the path."""
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    position = _SAVING_FUNCTIONS.get(name, _SAVING_FUNCTIONS.get(name.rpartition(".")[2]))
    if position is None or position >= len(node.args):
        return None
    return node.args[position]


def _assigned_paths(tree: ast.AST) -> dict[str, ast.expr]:
    """Returns the last value that the file assigns to each name."""
    return {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _path_pattern(node: ast.expr, assigned: dict[str, ast.expr], depth: int = 0) -> str:
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
        return _path_pattern(assigned[node.id], assigned, depth + 1)
    return "*"
