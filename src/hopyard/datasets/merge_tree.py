"""Moves a downloaded tree into a folder: files of the same name are replaced, all others are kept."""

from __future__ import annotations

import errno
import os
import stat

from hopyard.datasets.open_folder import OpenFolder
from hopyard.errors import SpecError


def merge_tree(tree: OpenFolder, dest: OpenFolder, *, name: str) -> None:
    """Moves everything in `tree` into `dest`. Never removes a folder, or a file that is not in the tree.

    Raises SpecError before anything is changed if a file of the tree has the name of an existing folder, or a
    folder the name of an existing file or link.
    """
    _check_kinds(tree, dest, name)
    _move_entries(tree, dest, name)


def _check_kinds(tree: OpenFolder, dest: OpenFolder, path: str) -> None:
    for name in sorted(tree.names()):
        try:
            existing = os.stat(name, dir_fd=dest.descriptor, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue
        if _is_folder(tree, name) is not stat.S_ISDIR(existing):
            kinds = ("a folder", "a file") if stat.S_ISDIR(existing) else ("a file or a link", "a folder")
            raise SpecError(
                f"`{path}/{name}` is {kinds[0]}, and the version has {kinds[1]} there",
                hints=("choose another folder, or move it away",),
            )
        if stat.S_ISDIR(existing):
            with tree.enter(name) as inner, dest.enter(name) as target:
                _check_kinds(inner, target, f"{path}/{name}")


def _move_entries(tree: OpenFolder, dest: OpenFolder, path: str) -> None:
    for name in sorted(tree.names()):
        try:
            if _is_folder(tree, name):
                with tree.enter(name) as inner, dest.ensure_folder(name) as target:
                    _move_entries(inner, target, f"{path}/{name}")
                os.rmdir(name, dir_fd=tree.descriptor)
            else:
                os.rename(name, name, src_dir_fd=tree.descriptor, dst_dir_fd=dest.descriptor)
        except OSError as error:
            hint = "check that you can write to it"
            if error.errno == errno.EXDEV:
                hint = "a mounted folder cannot be merged into: choose a folder inside it"
            raise SpecError(f"`{path}/{name}` cannot be written: {error.strerror}", hints=(hint,)) from error


def _is_folder(folder: OpenFolder, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode)
