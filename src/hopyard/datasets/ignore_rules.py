"""Decides which files of a folder belong to its tree.

Code honours `.gitignore` (also in parent folders up to the root of the repository), git's private ignore
files, then `.hopignore`, and excludes files that a working folder gathers. Files that git tracks are kept
although a git ignore file names them. Data honours only `.hopignore`: data is often stored in folders that
git ignores. To exclude it silently would be worse than to send a file too many.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hopyard.datasets.gitignore import GitIgnore, PatternMatch
from hopyard.datasets.private_ignore_files import private_ignore_files
from hopyard.domain.text_decoding import decode_text
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
    # paths that are left out by the caller
    omitted: frozenset[str] = frozenset()

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
    """One ignore file with its rules for paths below its folder.

    name: for messages. is_of_git: whether git reads the file, so that it does not apply to tracked files.
    """

    def __init__(
        self, patterns: GitIgnore, prefix: str, below: str = "", *, name: str, is_of_git: bool
    ) -> None:
        self._patterns, self._prefix, self._base = patterns, prefix, below
        self.name, self.is_of_git = name, is_of_git

    def match_path(self, path: str) -> PatternMatch | None:
        """Returns the pattern that decides about the path, None without one. The path of a folder ends with
        `/`."""
        relative_path = os.fsencode(self._base + path[len(self._prefix) :])
        return self._patterns.last_match(relative_path.rstrip(b"/"), is_folder=relative_path.endswith(b"/"))


class IgnoreStack:
    """The ignore files that apply in one folder, the nearest first.

    tracked: files that git tracks although its ignore files name them, and the folders above these files.
    outer_reason: why the folder is ignored that holds this one and tracked files, "" without such a folder.
    """

    def __init__(
        self,
        rules: IgnoreRules,
        files: tuple[IgnoreFile, ...] = (),
        tracked: Set[str] = frozenset(),
        outer_reason: str = "",
    ) -> None:
        self._rules, self._files, self._tracked, self._outer_reason = rules, files, tracked, outer_reason

    @classmethod
    def at_root(cls, rules: IgnoreRules, root: Path, tracked: Set[str] = frozenset()) -> IgnoreStack:
        """tracked: files that git tracks although its ignore files name them."""
        files = _outer_ignore_files(rules, root) if rules.include_parents else ()
        return cls(rules, files, frozenset((*tracked, *_parent_folders(tracked))))

    def enter(self, folder: Path, prefix: str, names: Set[str]) -> IgnoreStack:
        """Returns the stack below `folder`, which holds the ignore files `names`. `.git` among them makes the
        folder a repository of its own, to which the git ignore files above do not apply.

        Raises SpecError for an ignore file that cannot be read.
        """
        outer = self._files
        if prefix and ".git" in names and self._rules.include_parents:
            outer = tuple(file for file in outer if not file.is_of_git)
            outer += tuple(
                _load_ignore_file(file, prefix, name=str(file)) for file in private_ignore_files(folder)
            )
        folder_files = tuple(
            _load_ignore_file(folder / name, prefix, name=prefix + name)
            for name in reversed(self._rules.files)
            if name in names
        )
        return IgnoreStack(self._rules, (*folder_files, *outer), self._tracked, self._outer_reason)

    def enter_entry(self, path: str, name: str) -> IgnoreStack:
        """Returns the stack for the entries of a folder of the tree. path: ends with `/`."""
        if path in self._tracked and (reason := self._reason(path, name, is_tracked=False)):
            return IgnoreStack(self._rules, self._files, self._tracked, reason)
        return self

    def reason(self, path: str, name: str) -> str | None:
        """Returns why a file or folder is excluded from the tree, None if it belongs to the tree. The path of
        a folder ends with `/`.

        The reason is an ignore file with a line, or "" for a name that is excluded by default.
        """
        return self._reason(path, name, is_tracked=path in self._tracked)

    def _reason(self, path: str, name: str, *, is_tracked: bool) -> str | None:
        outer_reason = "" if is_tracked else self._outer_reason
        for file in self._files:
            if file.is_of_git and (is_tracked or outer_reason):
                continue
            match = file.match_path(path)
            if match is not None:
                if match.excluded:
                    return f"{file.name}, line {match.line}"
                if match.is_literal:
                    return None
                break
        return outer_reason or ("" if self._rules.is_ignored_by_default(name) else None)


def exclusion_reasons(
    rules: IgnoreRules, root: Path, paths: Iterable[str], *, tracked: Set[str] = frozenset()
) -> dict[str, str]:
    """Returns the paths that are excluded from the tree, with the reasons of `IgnoreStack.reason`.

    `paths` are relative to `root` and need not exist.
    tracked: as in `IgnoreStack.at_root`. Raises SpecError for an ignore file that cannot be read.
    """
    stacks: dict[str, IgnoreStack | str] = {}  # a text: the reason why the folder is excluded

    def enter(prefix: str) -> IgnoreStack | str:
        if prefix not in stacks:
            parent, _, name = prefix[:-1].rpartition("/")
            outer = (
                enter(parent + "/" if parent else "") if prefix else IgnoreStack.at_root(rules, root, tracked)
            )
            if isinstance(outer, IgnoreStack) and prefix:
                reason = outer.reason(prefix, name)
                outer = outer.enter_entry(prefix, name) if reason is None else reason
            if isinstance(outer, IgnoreStack):
                folder = root / prefix
                names = {file for file in rules.files if (folder / file).is_file()}
                if (folder / ".git").exists():
                    names.add(".git")
                outer = outer.enter(folder, prefix, names) if names else outer
            stacks[prefix] = outer
        return stacks[prefix]

    reasons: dict[str, str] = {}
    for path in paths:
        parent, slash, name = path.rpartition("/")
        stack = enter(parent + slash)
        reason = stack if isinstance(stack, str) else stack.reason(path, name)
        if reason is not None:
            reasons[path] = reason
    return reasons


def _load_ignore_file(path: Path, prefix: str, below: str = "", *, name: str) -> IgnoreFile:
    """Reads an ignore file. Git does not read a link or a folder of that name."""
    is_of_git = path.name != HOPIGNORE
    if path.is_dir() or (path.name == GITIGNORE and path.is_symlink()):
        data = b""
    else:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SpecError(
                f"the ignore file `{path}` cannot be read: {error.strerror}",
                hints=("make it readable, or remove it",),
            ) from error
    if not is_of_git:
        with suppress(SpecError):  # bytes of another encoding, as git takes them
            data = decode_text(data, name).encode()
    return IgnoreFile(GitIgnore(data), prefix, below, name=name, is_of_git=is_of_git)


def _outer_ignore_files(rules: IgnoreRules, root: Path) -> tuple[IgnoreFile, ...]:
    """Returns the ignore files of parent folders up to the root of the repository, the nearest first, then
    those that git reads for the whole repository."""
    files: list[IgnoreFile] = []
    for folder in (root, *root.parents):
        below = "" if folder == root else root.relative_to(folder).as_posix() + "/"
        if folder != root:
            files += [
                _load_ignore_file(folder / name, "", below, name=os.path.relpath(folder / name, root))
                for name in reversed(rules.files)
                if (folder / name).is_file()
            ]
        if (folder / ".git").exists():
            files += [
                _load_ignore_file(file, "", below, name=str(file)) for file in private_ignore_files(folder)
            ]
            return tuple(files)
    return ()  # no repository: parent folders are unrelated


def _parent_folders(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent:
            yield parent + "/"
            parent = parent.rpartition("/")[0]
