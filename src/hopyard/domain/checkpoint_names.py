"""Finds the names of the checkpoints that a script saves, by its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

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
# those that also write results; a file of theirs counts in a script that loads it
_PAIRED_FUNCTIONS = {"pickle.dump": (1, "file")}
_LOADING_FUNCTIONS = {"pickle.load": (0, "file")}
_MAX_PATTERNS = 32
_MIN_FIXED_CHARACTERS = 3  # of a pattern: `*.pt` is one, `*` and `*_` would keep nearly all files


def saved_file_patterns(source: str) -> tuple[str, ...]:
    """Returns patterns of file names, as in `RunSpec.checkpoint_files`; none for a source with an error."""
    if not any(name.rpartition(".")[2] in source for name in (*_SAVING_FUNCTIONS, *_PAIRED_FUNCTIONS)):
        return ()
    try:
        return _saved_patterns(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _saved_patterns(tree: ast.Module) -> tuple[str, ...]:
    assigned = _assigned_paths(tree)
    loaded = [name for names in _file_names(tree, _LOADING_FUNCTIONS, assigned) for name in names]
    patterns: dict[str, None] = {}
    for names in _file_names(tree, _SAVING_FUNCTIONS, assigned):
        patterns.update(dict.fromkeys(filter(_is_specific, names)))
    for names in _file_names(tree, _PAIRED_FUNCTIONS, assigned):
        own = [name for name in names if _is_specific(name) and _is_among(name, loaded)]
        patterns.update(dict.fromkeys(own))
    return tuple(patterns)[:_MAX_PATTERNS]


def _file_names(
    tree: ast.AST, functions: Mapping[str, tuple[int, str]], assigned: Mapping[str, Sequence[ast.expr]]
) -> Iterator[list[str]]:
    """Yields the patterns of the file names that each call of these functions may have."""
    for call, bound in _calls(tree):
        path = _path_argument(call, functions)
        if path is None:
            continue
        candidates: Sequence[ast.expr] = [path]
        if isinstance(path, ast.Name):
            candidates = [bound[path.id]] if path.id in bound else _values_before(call, path.id, assigned)
        texts = [_path_pattern(candidate, assigned) for candidate in candidates or [path]]
        yield [text.rstrip("/").rpartition("/")[2] for text in texts]


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, Mapping[str, ast.expr]]]:
    """Yields the calls, each with the values of the names that a `with` around it binds."""
    stack: list[tuple[ast.AST, Mapping[str, ast.expr]]] = [(tree, {})]
    while stack:
        node, bound = stack.pop()
        if isinstance(node, ast.Call):
            yield node, bound
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    bound = {**bound, item.optional_vars.id: item.context_expr}
        stack += [(child, bound) for child in reversed(list(ast.iter_child_nodes(node)))]


def _values_before(
    call: ast.Call, name: str, assigned: Mapping[str, Sequence[ast.expr]]
) -> Sequence[ast.expr]:
    """Returns the values that the name may have at the call: of opened files only the newest one."""
    values = assigned.get(name, ())
    opened = [value for value in values if isinstance(value, ast.Call) and _is_open(value.func)]
    before = [value for value in opened if value.lineno <= call.lineno]
    return [max(before, key=lambda value: value.lineno)] if before else values


def _is_open(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "open"


def _is_specific(name: str) -> bool:
    return len(name.replace("*", "")) >= _MIN_FIXED_CHARACTERS


def _is_among(name: str, loaded: Sequence[str]) -> bool:
    """Returns whether the script loads such a file, or one with a name that only the run knows."""
    return any(
        not _is_specific(other) or fnmatchcase(name, other) or fnmatchcase(other, name) for other in loaded
    )


def _path_argument(node: ast.Call, functions: Mapping[str, tuple[int, str]]) -> ast.expr | None:
    """Returns the argument of the call that is the path."""
    name = ast.unparse(node.func)
    place = functions.get(name, functions.get(name.rpartition(".")[2]))
    if place is None:
        return None
    position, keyword = place
    if position < len(node.args):
        return node.args[position]
    return next((given.value for given in node.keywords if given.arg == keyword), None)


def _assigned_paths(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """Returns the values that the file assigns to each name. A value that contains the name, such as
    `out = join(folder, out)`, is left out."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
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
