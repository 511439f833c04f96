"""The folder that the replicas of a gang on one node share: their run folder and working folder, and which of
them have ended."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.home import Home
from hopyard.domain.replica import LOCK_FILE, ReplicaSpec
from hopyard.file_locks import is_locked
from hopyard.private_files import create_below, make_folder, make_folder_below, open_file
from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode

_ENDED_DIR, _LOCK_FILE = "ended", "folders.lock"
_READY_FILE = "folders.ready"


@dataclass(frozen=True, slots=True)
class GangFolder:
    root: Path
    spec: ReplicaSpec

    @property
    def run(self) -> Path:
        """The run folder, `$HOPYARD_RUN_DIR`."""
        return self.root / "run"

    @property
    def place(self) -> Path:
        """The path of this folder for processes of the run. It is the same in each attempt, because scripts
        write absolute paths into their checkpoints."""
        return Home(Path(self.spec.node.home)).run_places / self.spec.launch.run

    @property
    def continued_places(self) -> list[Path]:
        """The paths of the runs that this one continues, see `RunSpec.continued_runs`."""
        places = Home(Path(self.spec.node.home)).run_places
        return [places / run for run in self.spec.launch.continued_runs]

    def make_place(self) -> None:
        """Makes the link to this folder, over that of an earlier attempt. Call it with the lock."""
        target, place = str(self.root.absolute()), self.place
        with suppress(OSError):
            if os.readlink(place) == target:
                return
        make_folder(place.parent)
        scratch = place.with_name(f".{place.name}.{os.getpid()}")
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(target)
        scratch.replace(place)

    def path_in_place(self, path: Path) -> Path:
        """Returns a path of this folder as processes of the run see it: with private mounts, that of the
        first run that this one continues. Frameworks compare the paths in their checkpoints with it. For
        other processes, such as this one, that path leads nowhere or to the other run."""
        continued = self.continued_places if self._has_private_mounts() else []
        return (continued[0] if continued else self.place) / path.relative_to(self.root)

    def _has_private_mounts(self) -> bool:
        if self.spec.launch.image:  # a container has its own mounts everywhere
            return True
        return self.spec.node.namespaces and detect_isolation_mode() is not IsolationMode.MODES

    @property
    def shared_work(self) -> Path | None:
        """The working folder of all replicas on this node; None where each has its own."""
        launch = self.spec.launch
        is_shared = self.spec.node.shares_folder and not launch.private_folders and launch.study is None
        return self.root / "work" if is_shared else None

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Yields whether the shared folders are complete, with the lock for completing them."""
        make_folder(self.root)
        descriptor = create_below(self.root, _LOCK_FILE, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self.is_ready
        finally:
            os.close(descriptor)

    @property
    def is_ready(self) -> bool:
        """Whether the run folder was restored completely."""
        return (self.root / _READY_FILE).exists()

    def mark_ready(self) -> None:
        os.close(create_below(self.root, _READY_FILE, os.O_WRONLY))

    def mark_ended(self) -> bool:
        """Records the end of this replica's process. Returns whether all replicas on this node have ended.
        The last one stores what they share.

        A replica without a live program counts as ended. It may have failed before it started, so that no
        later one would store anything. If it is adopted, it stores what has changed until then.
        """
        with suppress(OSError):  # on a full disk each replica counts as the last one
            own = str(self.spec.launch.rank)
            folder = make_folder_below(self.root, _ENDED_DIR)
            try:
                os.close(open_file(own, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, folder=folder))
                ended = {own, *os.listdir(folder)}
            finally:
                os.close(folder)
            ranks = {entry.name for entry in os.scandir(self.root) if entry.name.isdecimal()}
            return not any(
                is_locked(f"{rank}/{LOCK_FILE}", parent_folder=self.root) for rank in ranks - ended
            )
        return True
