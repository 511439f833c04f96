"""Packs the code of a run, and notifies of what is not packed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hopyard.client.feedback import Notify, ProgressFactory, notify_of_skipped_homes
from hopyard.client.git_files import unfetched_notices
from hopyard.client.ignore_check import check_scripts, left_out_notices
from hopyard.config.home import Home
from hopyard.datasets.pack import CODE_RULES, pack_tree
from hopyard.domain.byte_text import format_bytes
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.client.git_state import GitProbe
    from hopyard.datasets.packed_tree import PackedTree
    from hopyard.datasets.progress import ProgressListener

_WARN_CODE_BYTES, _WARN_CODE_FILES = 200 * 1024 * 1024, 20_000


def pack_code(
    folder: Path,
    probe: GitProbe,
    commands: Sequence[Sequence[str]],
    *,
    needed: Set[str] = frozenset(),
    notify: Notify,
    on_progress: ProgressFactory,
    omitted: Iterable[str] = (),
) -> PackedTree:
    """Packs the folder by the rules for code. commands: of the run, with the files that they name. needed:
    files that are packed although `.gitignore` names them. omitted: paths that the run has from elsewhere,
    such as a folder or link that a dataset replaces.

    Raises SpecError for a script that an ignore file leaves out, and for a file of the code at one of these
    paths: a dataset replaces folders and links only.
    """
    places = frozenset(omitted) - {""}
    with on_progress() as shown:
        progress = _SizeWarning(shown, notify)
        home = Home.default().create()
        tree = pack_tree(
            folder,
            rules=replace(
                CODE_RULES, omitted=frozenset(path for path in places if not (folder / path).is_file())
            ),
            cache=home.pack_cache,
            excluded=home.root,
            progress=progress,
            tracked=probe.tracked_ignored_files() | needed,
        )
    _check_places(tree, places)
    check_scripts(tree.root, tree.left_out, commands)
    notify_of_skipped_homes(tree.homes, notify)
    notices = left_out_notices(tree.root, tree.left_out, commands, places)
    for line in (*notices, *unfetched_notices(tree)):
        notify(line)
    if not progress.warned:
        _warn_of_size(notify, tree.size_bytes, tree.files)
    return tree


def _check_places(tree: PackedTree, places: Set[str]) -> None:
    """Raises SpecError for a place that is a packed file, or that would be in one."""
    if not places:
        return
    files = {path for path, *_ in json.loads(tree.encoded)["files"]}
    for place in sorted(places):
        found = files.intersection((place, *map(str, PurePosixPath(place).parents)))
        if found:
            raise SpecError(
                f"a dataset cannot be placed at `{place}`: `{min(found)}` is a file of the code",
                hints=(
                    "choose another path, for example `-d NAME=data`",
                    f"or name `{min(found)}` in .hopignore: the run then has the dataset in its place",
                ),
            )


class _SizeWarning:
    """Passes progress on, and warns of large code before it is hashed: the user sees why it takes long."""

    def __init__(self, listener: ProgressListener, notify: Notify) -> None:
        self._listener, self._notify = listener, notify
        self.warned = False

    def begin(self, what: str, total_bytes: int, /) -> None:
        self.warned = _warn_of_size(self._notify, total_bytes)
        self._listener.begin(what, total_bytes)

    def advance(self, size_bytes: int, /) -> None:
        self._listener.advance(size_bytes)


def _warn_of_size(notify: Notify, size_bytes: int, files: int = 0) -> bool:
    """Returns whether it warned."""
    if size_bytes <= _WARN_CODE_BYTES and files <= _WARN_CODE_FILES:
        return False
    notify(f"note: the code is {format_bytes(size_bytes)}" + (f" in {files:,} files" if files else ""))
    notify("hint: name what a run does not need in .hopignore; data belongs into `hop dataset push`")
    return True
