"""Decides which files of a folder belong to its tree.

Code honours `.gitignore` (also in parent folders up to the root of the repository), then `.hopignore`, and
excludes files that a working folder gathers. Data honours only `.hopignore`: data is often stored in folders
that git ignores. To exclude it silently would be worse than to send a file too many.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hopyard.datasets.gitignore import GitIgnore, PatternMatch
from hopyard.errors import SpecError

HOPIGNORE, GITIGNORE = ".hopignore", ".gitignore"


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """files: names of ignore files to honour; later ones take precedence. names, suffixes: excluded unless an
    ignore file includes them by a `!` pattern without wildcards: `!*/` means folders of the user, not the
    caches and secrets among them. Folders in `names` are not scanned at all."""

    name: str
    files: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    # whether ignore files in parent folders count, up to the root of the repository
    include_parents: bool = False
    # whether a repository is an error instead of excluded: for comparison with a tree, which never holds one
    ignore_nothing: bool = False
    # whether sockets, pipes and devices are skipped, as git does, instead of rejected
    only_files: bool = False

    def is_ignored_by_default(self, name: str) -> bool:
        """Returns whether a file or folder of this name is excluded when no ignore file matches it."""
        return name in self.names or (bool(self.suffixes) and name.endswith(self.suffixes))


# Other users can read the code of a run.
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
    """One ignore file with its rules for paths below its folder."""

    def __init__(self, patterns: GitIgnore, prefix: str, below: str = "") -> None:
        self._patterns, self._prefix, self._base = patterns, prefix, below

    def match_path(self, path: str) -> PatternMatch | None:
        """Returns the pattern that decides about the path, None without one. The path of a folder ends with
        `/`."""
        relative_path = os.fsencode(self._base + path[len(self._prefix) :])
        return self._patterns.last_match(relative_path.rstrip(b"/"), is_folder=relative_path.endswith(b"/"))


class IgnoreStack:
    """The ignore files that apply in one folder, the nearest first."""

    def __init__(self, rules: IgnoreRules, files: tuple[IgnoreFile, ...] = ()) -> None:
        self._rules, self._files = rules, files

    @classmethod
    def at_root(cls, rules: IgnoreRules, root: Path) -> IgnoreStack:
        return cls(rules, _parent_ignore_files(rules, root) if rules.include_parents else ())

    def enter(self, folder: Path, prefix: str, names: frozenset[str] | set[str]) -> IgnoreStack:
        """Returns the stack below `folder`, which holds the ignore files `names`.

        Raises SpecError for an ignore file that cannot be read.
        """
        folder_files = [
            IgnoreFile(_load_ignore_file(folder / name), prefix)
            for name in reversed(self._rules.files)
            if name in names
        ]
        return IgnoreStack(self._rules, (*folder_files, *self._files)) if folder_files else self

    def ignores(self, path: str, name: str) -> bool:
        """Returns whether a file or folder is excluded from the tree. The path of a folder ends with `/`."""
        for file in self._files:
            match = file.match_path(path)
            if match is not None:
                return match.excluded or (not match.is_literal and self._rules.is_ignored_by_default(name))
        return self._rules.is_ignored_by_default(name)


def ignored_paths(rules: IgnoreRules, root: Path, paths: Iterable[str]) -> list[str]:
    """Returns the paths that are excluded from the tree. `paths` are relative to `root` and need not exist.

    Raises SpecError for an ignore file that cannot be read.
    """
    stacks: dict[str, IgnoreStack | None] = {}  # None: the folder is excluded

    def enter(prefix: str) -> IgnoreStack | None:
        if prefix not in stacks:
            parent, _, name = prefix[:-1].rpartition("/")
            parent_stack = (
                enter(parent + "/" if parent else "") if prefix else IgnoreStack.at_root(rules, root)
            )
            if parent_stack is None or (prefix and parent_stack.ignores(prefix, name)):
                stacks[prefix] = None
            else:
                folder = root / prefix
                stacks[prefix] = parent_stack.enter(
                    folder, prefix, {name for name in rules.files if (folder / name).is_file()}
                )
        return stacks[prefix]

    def is_excluded(path: str) -> bool:
        parent, slash, name = path.rpartition("/")
        stack = enter(parent + slash)
        return stack is None or stack.ignores(path, name)

    return [path for path in paths if is_excluded(path)]


def _load_ignore_file(path: Path) -> GitIgnore:
    """Returns the patterns of a file. Git does not read a link or a folder of that name."""
    if path.is_dir() or (path.name == GITIGNORE and path.is_symlink()):
        return GitIgnore(b"")
    try:
        return GitIgnore(path.read_bytes())
    except OSError as error:
        raise SpecError(
            f"the ignore file `{path}` cannot be read: {error.strerror}",
            hints=("make it readable, or remove it",),
        ) from error


def _parent_ignore_files(rules: IgnoreRules, root: Path) -> tuple[IgnoreFile, ...]:
    """Returns the ignore files of parent folders up to the root of the repository, the nearest first."""
    if (root / ".git").exists():
        return ()
    files: list[IgnoreFile] = []
    for folder in root.parents:
        below = root.relative_to(folder).as_posix() + "/"
        files += [
            IgnoreFile(_load_ignore_file(folder / name), "", below)
            for name in reversed(rules.files)
            if (folder / name).is_file()
        ]
        if (folder / ".git").exists():
            return tuple(files)
    return ()  # no repository: parent folders are unrelated
