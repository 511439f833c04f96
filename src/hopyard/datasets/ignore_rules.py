"""Which files of a folder belong to its tree.

Code honours `.gitignore` (also those above it, up to the root of its repository), then `.hopignore`, and
leaves out what a working folder gathers by itself. Data honours only `.hopignore`: data often lies in folders
that git is told to ignore, and leaving it out silently would be worse than sending a file too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.errors import SpecError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

HOPIGNORE, GITIGNORE = ".hopignore", ".gitignore"


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """files: names of ignore files that count, later ones outweigh earlier ones. names, suffixes: left out
    unless an ignore file takes them in again with `!`. Directories in `names` are not even looked into."""

    name: str
    files: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    include_parents: bool = (
        False  # whether ignore files above the folder count, up to the root of the repository
    )
    # whether a repository is an error, not left out: what is compared with a tree, which never holds one
    ignore_nothing: bool = False
    # whether sockets, pipes and devices are passed over, as git does, instead of refused
    only_files: bool = False

    def is_ignored_by_default(self, name: str) -> bool:
        """Whether a file or folder of this name is left out where no ignore file says anything."""
        return name in self.names or (bool(self.suffixes) and name.endswith(self.suffixes))


# Everybody may read the code of a run, and its files.
SECRET_FILES = frozenset(
    {
        ".netrc",
        "_netrc",
        ".git-credentials",
        ".pypirc",
        ".dockercfg",
        ".pgpass",
        "id_rsa",
        "id_ecdsa",
        "id_ed25519",
    }
)
REPOSITORY_FOLDERS = frozenset({".git", ".hg", ".svn"})
CACHE_FOLDERS = frozenset(
    {
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".ipynb_checkpoints",
        ".tox",
        ".nox",
        ".idea",
        ".DS_Store",
        ".hopyard",
    }
)
CODE_RULES = IgnoreRules(
    "code",
    (GITIGNORE, HOPIGNORE),
    SECRET_FILES | REPOSITORY_FOLDERS | CACHE_FOLDERS | {"__pycache__", ".venv", "venv", "node_modules"},
    (".pyc", ".pyo"),
    include_parents=True,
    only_files=True,
)
DATA_RULES = IgnoreRules("data", (HOPIGNORE,), frozenset({".git", ".DS_Store"}))
ALL_FILES_RULES = IgnoreRules("everything")
EXACT_RULES = IgnoreRules("exact", ignore_nothing=True)


class IgnoreFile:
    """One ignore file: what it says of paths below its folder."""

    def __init__(self, spec: GitIgnoreSpec, prefix: str, below: str = "") -> None:
        self._spec, self._prefix, self._base = spec, prefix, below

    def match_path(self, path: str) -> bool | None:
        """True: left out, False: taken in again, None: it says nothing. A folder's path ends with `/`."""
        return self._spec.check_file(self._base + path[len(self._prefix) :]).include


class IgnoreStack:
    """The ignore files that count in one folder, the nearest first."""

    def __init__(self, rules: IgnoreRules, files: tuple[IgnoreFile, ...] = ()) -> None:
        self._rules, self._files = rules, files

    @classmethod
    def at_root(cls, rules: IgnoreRules, root: Path) -> IgnoreStack:
        return cls(rules, _parent_ignore_files(rules, root) if rules.include_parents else ())

    def enter(self, folder: Path, prefix: str, names: frozenset[str] | set[str]) -> IgnoreStack:
        """What counts below `folder`, whose ignore files are `names`.
        Raises SpecError for one that cannot be read."""
        own = [
            IgnoreFile(_load_ignore_file(folder / name), prefix)
            for name in reversed(self._rules.files)
            if name in names
        ]
        return IgnoreStack(self._rules, (*own, *self._files)) if own else self

    def ignores(self, path: str, name: str) -> bool:
        """Whether the file or folder (its path ends with `/`) is not part of the tree."""
        for file in self._files:
            verdict = file.match_path(path)
            if verdict is not None:
                return verdict
        return self._rules.is_ignored_by_default(name)


def ignored_paths(rules: IgnoreRules, root: Path, paths: Iterable[str]) -> list[str]:
    """Those of the files (relative to `root`, whether they are there or not) that are not part of its tree.
    Raises SpecError for an ignore file that cannot be read."""
    entered: dict[str, IgnoreStack | None] = {}  # None: left out whole

    def enter(prefix: str) -> IgnoreStack | None:
        if prefix not in entered:
            above, _, name = prefix[:-1].rpartition("/")
            outer = enter(above + "/" if above else "") if prefix else IgnoreStack.at_root(rules, root)
            if outer is None or (prefix and outer.ignores(prefix, name)):
                entered[prefix] = None
            else:
                folder = root / prefix
                entered[prefix] = outer.enter(
                    folder, prefix, {name for name in rules.files if (folder / name).is_file()}
                )
        return entered[prefix]

    def is_left_out(path: str) -> bool:
        above, slash, name = path.rpartition("/")
        ignored = enter(above + slash)
        return ignored is None or ignored.ignores(path, name)

    return [path for path in paths if is_left_out(path)]


def _load_ignore_file(path: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # late: most folders hold no ignore file

    try:
        return GitIgnoreSpec.from_lines(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as bad:
        raise SpecError(
            f"the ignore file `{path}` cannot be used: {bad}", hints=("mend or remove it",)
        ) from bad


def _parent_ignore_files(rules: IgnoreRules, root: Path) -> tuple[IgnoreFile, ...]:
    """Ignore files between `root` (not included) and the root of its repository, the nearest first."""
    if (root / ".git").exists():
        return ()
    found: list[IgnoreFile] = []
    for folder in root.parents:
        below = root.relative_to(folder).as_posix() + "/"
        found += [
            IgnoreFile(_load_ignore_file(folder / name), "", below)
            for name in reversed(rules.files)
            if (folder / name).is_file()
        ]
        if (folder / ".git").exists():
            return tuple(found)
    return ()  # no repository: what lies above has nothing to do with this folder
