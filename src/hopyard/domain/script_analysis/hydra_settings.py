"""The names of settings in the files of a Hydra application: `lr`, `optim.lr`, and the group `optim`.

The lines are read by their indentation, which needs no YAML parser. What it misses leaves a name unknown.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator

from hopyard.domain.param_format import OptionKind, ScriptOption
from hopyard.domain.script_analysis.source_tree import ReadSource, SourceTree

_KEY = re.compile(r"( *)([A-Za-z_][\w.-]*) *:(?: +(.*))?", re.ASCII)
_DEFAULT = re.compile(
    r" *- +(?:override +|optional +)*/?([A-Za-z][\w/-]*)(?:@([\w.]+))? *: *([\w./-]+) *(?:#.*)?", re.ASCII
)
_INCLUDE = re.compile(r" *- +/?([A-Za-z][\w./-]*) *(?:#.*)?", re.ASCII)
_PACKAGE = re.compile(r"# *@package +(\S+)")
_MAX_FILES = 64


def hydra_options(source: SourceTree, read: ReadSource) -> dict[str, ScriptOption]:
    """Returns the settings of the first `hydra.main` of a module, and its groups; none without files."""
    for name, call in source.calls():
        if name != "hydra.main":
            continue
        words = dict(zip(("config_path", "config_name"), call.args, strict=False))
        words |= {k.arg: k.value for k in call.keywords if k.arg in ("config_path", "config_name")}
        path, file = (_text(words.get(key)) for key in ("config_path", "config_name"))
        if not file:
            return {}
        folder = posixpath.normpath(posixpath.join(posixpath.dirname(source.path), path))
        options: dict[str, ScriptOption] = {}
        _add_file(options, folder, file.removesuffix(".yaml"), "", read, [])
        return options
    return {}


def _add_file(
    options: dict[str, ScriptOption], folder: str, file: str, package: str, read: ReadSource, seen: list[str]
) -> None:
    path = posixpath.normpath(f"{folder}/{file}.yaml")
    if path in seen or len(seen) >= _MAX_FILES or path.startswith(".."):
        return
    seen.append(path)
    content = read(path)
    if content is None:
        return
    text = content.decode(errors="replace")
    if (header := _PACKAGE.search(text)) is not None:
        package = "" if header[1] == "_global_" else package if header[1] == "_group_" else header[1]
    for line in _defaults(text):
        if (chosen := _DEFAULT.fullmatch(line)) is not None:
            group, place, choice = chosen[1], chosen[2], chosen[3]
            if group.split("/")[0] != "hydra":
                options.setdefault(f"{group}@{place}" if place else group, _option(group, ""))
                _add_file(options, f"{folder}/{group}", choice, place or group.replace("/", "."), read, seen)
        elif (included := _INCLUDE.fullmatch(line)) is not None:
            _add_file(options, folder, included[1], package, read, seen)
    for key, value in _settings(text):
        full = f"{package}.{key}" if package else key
        options.setdefault(full, _option(full, value))


def _option(name: str, value: str) -> ScriptOption:
    try:
        float(value.partition("#")[0])
    except ValueError:
        return ScriptOption(name, OptionKind.JOINED)
    return ScriptOption(name, OptionKind.JOINED, numeric=True)


def _defaults(text: str) -> list[str]:
    lines = iter(text.splitlines())
    found: list[str] = []
    for line in lines:
        if line.rstrip() == "defaults:":
            for entry in lines:
                if not entry.strip() or entry.lstrip().startswith("#"):
                    continue
                if not entry.lstrip().startswith("-"):
                    break
                found.append(entry.rstrip())
            break
    return found


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yields the path and the value of each key."""
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = _KEY.fullmatch(line.rstrip())
        if found is None:
            continue
        depth, name = len(found[1]), found[2]
        while parents and parents[-1][0] >= depth:
            parents.pop()
        parents.append((depth, name))
        path = ".".join(part for _, part in parents)
        if parents[0][1] not in ("defaults", "hydra"):
            yield path, found[3] or ""


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
