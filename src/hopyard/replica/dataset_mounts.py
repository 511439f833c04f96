"""Puts datasets at the paths where a script looks for them.

A relative path becomes a link in the working folder, or in one of the run's folders above it. At an absolute
path the dataset is mounted in the mount namespace of the run's process, so two runs may have different
versions there. Without namespaces it is a link on the node.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from hopyard.config.home import Home
from hopyard.domain.replica import ReplicaSpec
from hopyard.domain.run import DatasetRef
from hopyard.private_files import make_folder, open_file
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode
from hopyard.replica.uploads import open_folder_below

_MOUNT_POINT_MODE = 0o755


@dataclass(slots=True)
class DatasetMounts:
    """work: the working folder of the process. stack: keeps links at absolute paths until it closes."""

    spec: ReplicaSpec
    work: Path
    stack: ExitStack

    def place(self, trees: Mapping[str, Path]) -> dict[Path, Path]:
        """Places each dataset that has a path. Returns the mounts of the process: folder → tree. Raises
        PrepareFailed."""
        mounts: dict[Path, Path] = {}
        for ref in self.spec.launch.datasets:
            if not ref.path:
                continue
            if not ref.path.startswith("/"):
                self._link_in_run(ref, trees[ref.name])
            elif self.spec.launch.image:
                continue  # the container has a mount there
            elif self._has_namespaces():
                mounts[self._mount_point(ref)] = trees[ref.name].resolve()
            else:
                self._link_on_node(ref, trees[ref.name])
        return mounts

    def _has_namespaces(self) -> bool:
        return self.spec.node.namespaces and detect_isolation_mode() is not IsolationMode.MODES

    def _link_in_run(self, ref: DatasetRef, tree: Path) -> None:
        parts = ref.path.split("/")
        levels = parts.count("..")
        base = self.work if levels == 0 else self.work.parents[levels - 1]
        *parents, name = parts[levels:]
        with open_folder_below(base, "/".join(parents)) as folder:
            try:
                if os.readlink(name, dir_fd=folder) == str(tree):
                    return  # another replica of the gang was first
                os.unlink(name, dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    # a folder of the code, of which this is the run's own copy
                    shutil.rmtree(name, dir_fd=folder) if levels == 0 else os.rmdir(name, dir_fd=folder)
            try:
                os.symlink(tree, name, dir_fd=folder)
            except FileExistsError:
                if os.path.islink(f"/proc/self/fd/{folder}/{name}"):
                    return
                raise PrepareFailed(
                    f"dataset {ref.name} cannot be placed at `{ref.path}`: the code of the run has a "
                    "file there (leave it out with .hopignore, or choose another path)"
                ) from None

    def _mount_point(self, ref: DatasetRef) -> Path:
        """Returns the folder to mount on, which is created if it is missing."""
        folder, home = Path(os.path.realpath(ref.path)), Path(os.path.realpath(self.spec.node.home))
        if folder.is_relative_to(home) or home.is_relative_to(folder):
            raise PrepareFailed(
                f"dataset {ref.name} cannot be placed at {ref.path}: it would hide the home of Hopyard "
                f"({home})"
            )
        if folder.is_dir():
            return folder
        if folder.exists():
            raise PrepareFailed(f"dataset {ref.name} cannot be placed at {ref.path}: it is a file")
        try:
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            for path in reversed(missing):
                with suppress(FileExistsError):
                    path.mkdir()
                    path.chmod(_MOUNT_POINT_MODE)
        except OSError as error:
            raise _not_creatable(ref, error) from error
        return folder

    def _link_on_node(self, ref: DatasetRef, tree: Path) -> None:
        """Creates a link that lasts as long as a run uses it. Raises PrepareFailed if another version is in
        use there."""
        link = Path(ref.path)
        locks = Home(Path(self.spec.node.home)).trees.parent / "dataset-links"
        make_folder(locks)
        lock = open_file(locks / blake3(os.fsencode(link)).hexdigest(), os.O_RDWR | os.O_CREAT)
        self.stack.callback(_release, lock, link, tree)
        if _try_lock(lock):
            try:
                if link.is_symlink() and Path(os.readlink(link)).is_relative_to(tree.parent):
                    link.unlink()
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(tree)
            except OSError as error:
                raise _not_creatable(ref, error) from error
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not link.is_symlink() or os.readlink(link) != str(tree):
            raise PrepareFailed(
                f"dataset {ref.name} cannot be placed at {ref.path}: another run uses the path (this node "
                "has no private mounts)"
            )


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _release(lock: int, link: Path, tree: Path) -> None:
    """Removes the link after its last run."""
    with suppress(OSError):
        if _try_lock(lock) and os.readlink(link) == str(tree):
            link.unlink()
    os.close(lock)


def _not_creatable(ref: DatasetRef, error: OSError) -> PrepareFailed:
    return PrepareFailed(
        f"dataset {ref.name} cannot be placed at {ref.path}: {error.strerror or error} "
        f"(create the folder on the node: `sudo mkdir -p {ref.path}`; or give a path in the working folder: "
        f"`-d {ref.name}=data`)"
    )
