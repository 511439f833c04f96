"""The names of settings in the files of a Hydra application: `lr`, `optim.lr`, and the group `optim`.

The lines are read by their indentation, which needs no YAML parser. What it misses leaves a name unknown.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hopyard.domain.param_format import OptionKind, ScriptOption
from hopyard.domain.script_analysis.source_tree import ReadSource, SourceTree

_KEY = re.compile(r"( *)([A-Za-z_][\w.-]*) *:(?: +(.*))?", re.ASCII)
_DEFAULT = re.compile(
    r" *- +(?:override +|optional +)*(/?)([A-Za-z][\w/-]*)(?:@([\w.]+))? *: *([\w./-]+) *(?:#.*)?", re.ASCII
)
_INCLUDE = re.compile(r" *- +(/?)([A-Za-z][\w./-]*) *(?:#.*)?", re.ASCII)
_PACKAGE = re.compile(r"# *@package +(\S+)")
_MAX_FILES = 64
_MAIN = frozenset({"hydra.main"})
_INITIALIZE = frozenset({"hydra.initialize", "hydra.initialize_config_dir"})
_COMPOSE = frozenset({"hydra.compose"})
_ARGUMENTS = {  # by position
    "hydra.main": ("config_path", "config_name"),
    "hydra.initialize": ("config_path",),
    "hydra.compose": ("config_name",),
}


def hydra_options(source: SourceTree, read: ReadSource) -> dict[str, ScriptOption]:
    """Returns the settings of the first `hydra.main` or `hydra.compose` of a module, and its groups; none
    without files."""
    path: str | None = None
    file = ""
    for name, call in source.calls():
        words = dict(zip(_ARGUMENTS.get(name, ()), call.args, strict=False))
        words |= {word.arg: word.value for word in call.keywords if word.arg is not None}
        if name in _MAIN or name in _INITIALIZE:
            path = _text(words.get("config_path")) if path is None else path
        if name in _MAIN or name in _COMPOSE:
            file = file or _text(words.get("config_name"))
    if not file:
        return {}
    folder = posixpath.normpath(posixpath.join(posixpath.dirname(source.path), path or ""))
    options: dict[str, ScriptOption] = {}
    _ConfigReader(folder, read, options).add_file(file.removesuffix(".yaml"), "", "")
    return options


def takes_overrides(source: SourceTree) -> bool:
    """Returns whether a module gives the words of its command line to Hydra."""
    for name, call in source.calls():
        if name in _MAIN:
            return True
        if name in _COMPOSE and any(_reads_argv(source, each) for each in (*call.args, *call.keywords)):
            return True
    return False


def _reads_argv(source: SourceTree, node: ast.AST) -> bool:
    """Returns whether an expression, or the value of a variable in it, has the words of the command line."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    values = [
        each.value
        for each in ast.walk(source.tree)
        if isinstance(each, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id in names for target in each.targets)
    ]
    return any(
        source.resolve(each) == "sys.argv"
        for tree in (node, *values)
        for each in ast.walk(tree)
        if isinstance(each, (ast.Name, ast.Attribute))
    )


@dataclass(slots=True)
class _ConfigReader:
    """Adds the settings of files to `options`. root: the folder of the configuration."""

    root: str
    read: ReadSource
    options: dict[str, ScriptOption]
    seen: set[tuple[str, str]] = field(default_factory=set)

    def add_file(self, file: str, group: str, package: str) -> None:
        """Adds a file of a group, such as `mysql` of `server/db`. package: the place of its settings."""
        path = posixpath.normpath(posixpath.join(self.root, group, f"{file}.yaml"))
        if (path, package) in self.seen or len(self.seen) >= _MAX_FILES or path.startswith(".."):
            return
        self.seen.add((path, package))
        content = self.read(path)
        if content is None:
            return
        text = content.decode(errors="replace")
        if (header := _PACKAGE.search(text)) is not None:
            package = _join_package("", header[1], package)
        for line in _defaults(text):
            if (chosen := _DEFAULT.fullmatch(line)) is not None:
                self._add_choice(chosen, group, package)
            elif (included := _INCLUDE.fullmatch(line)) is not None:
                folder, _, name = included[2].rpartition("/")
                inner = _join_group(group, folder, is_absolute=bool(included[1]))
                self.add_file(name, inner, _join_package(package, folder.replace("/", "."), package))
        for key, value in _settings(text):
            full = f"{package}.{key}" if package else key
            self.options.setdefault(full, _option(full, value))

    def _add_choice(self, found: re.Match[str], group: str, package: str) -> None:
        slash, name, place, choice = found.groups()
        full = _join_group(group, name, is_absolute=bool(slash))
        if full.split("/")[0] == "hydra":
            return
        inner = _join_package(package, place or name.replace("/", "."), package)
        key = full if inner == full.replace("/", ".") else f"{full}@{inner or '_global_'}"
        self.options.setdefault(key, _option(key, ""))
        self.add_file(choice, full, inner)


def _join_group(group: str, name: str, *, is_absolute: bool) -> str:
    return name if is_absolute or not group else f"{group}/{name}".rstrip("/")


def _join_package(outer: str, name: str, here: str) -> str:
    """Returns the package with a name inside of `outer`. here: what `_here_` and `_group_` mean."""
    if name in ("_here_", "_group_"):
        return here
    if name == "_global_" or name.startswith("_global_."):
        return name[len("_global_.") :]
    return ".".join(filter(None, (outer, name)))


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
