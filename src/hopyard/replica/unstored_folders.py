"""What could never be stored on the server: its folder stays on this node, and the run says what it is and
where."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.config.home import Home
from hopyard.domain.replica import ReplicaSpec
from hopyard.domain.run import UNSTORED
from hopyard.private_files import make_folder
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log


@dataclass(slots=True)
class UnstoredFolders:
    """Moves such folders out of the attempt's, which is removed at the end.
    The news travels in the stream of events."""

    folder: ReplicaDir
    spec: ReplicaSpec
    _unreported: list[str] = field(default_factory=list)
    # several threads have something to say
    _report_lock: threading.Lock = field(default_factory=threading.Lock)

    def retain(self, what: str, path: Path, reason: Exception | str) -> None:
        """what: as a sentence begins ("the checkpoint of step 5"). path: its folder, which may be gone."""
        kept = self._move(path)
        where = (
            f"it is kept in {kept} on node {self.spec.node.id}"
            if kept
            else "its folder could not be moved aside either"
        )
        text = f"{what} could not be stored: {reason}; {where}"
        self.queue_message(text)
        self.report_pending()

    def queue_message(self, text: str) -> None:
        """Something else that the run says; `tell` does."""
        log(text)
        self._unreported.append(text)

    def report_pending(self) -> None:
        """Say what is not said yet. A disk that is full now may have room later: call it again."""
        with self._report_lock, suppress(OSError):
            while self._unreported:
                self.folder.append_json("events", kind=UNSTORED, text=self._unreported[0])
                del self._unreported[0]

    def _move(self, path: Path) -> Path | None:
        launch = self.spec.launch
        home = Home(Path(self.spec.node.home))
        target = home.retained_of(launch.run) / f"{launch.attempt}-{launch.rank}" / path.name
        try:
            path.lstat()  # first: for nothing no folder is made
            make_folder(target.parent, private_parent=home.root)
            path.rename(target)
        except OSError as failed:
            log(f"{path} was not moved: {failed}")
            return None
        return target
