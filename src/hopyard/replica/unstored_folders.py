"""Folders that could not be stored on the server. They stay on this node, and the run's events say which and
where."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.config.home import Home
from hopyard.domain.replica import ReplicaSpec
from hopyard.domain.run import UNSTORED
from hopyard.private_files import make_folder, move_below
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log


@dataclass(slots=True)
class UnstoredFolders:
    """Moves such folders out of the attempt's folder, which is removed at the end. Messages are sent in the
    stream of events."""

    folder: ReplicaDir
    spec: ReplicaSpec
    _unreported: list[str] = field(default_factory=list)
    # several threads report messages
    _report_lock: threading.Lock = field(default_factory=threading.Lock)

    def retain(self, subject: str, path: Path, reason: Exception | str) -> None:
        """subject: the beginning of the sentence ("the checkpoint of step 5"). path: its folder, which may
        not exist any more."""
        retained_folder = self._move(path)
        location = (
            f"it is kept in {retained_folder} on node {self.spec.node.id}"
            if retained_folder
            else "its folder could not be moved aside either"
        )
        text = f"{subject} could not be stored: {reason}; {location}"
        self.queue_message(text)
        self.report_pending()

    def queue_message(self, text: str) -> None:
        """Queues any other message of the run; `report_pending` writes it."""
        log(text)
        self._unreported.append(text)

    def report_pending(self) -> None:
        """Writes the pending messages. A full disk may have space later: call it again."""
        with self._report_lock, suppress(OSError):
            while self._unreported:
                self.folder.append_json("events", kind=UNSTORED, text=self._unreported[0])
                del self._unreported[0]

    def _move(self, path: Path) -> Path | None:
        launch = self.spec.launch
        home = Home(Path(self.spec.node.home))
        target = home.retained_of(launch.run) / f"{launch.attempt}-{launch.rank}" / path.name
        try:
            path.lstat()  # first: no target folder is created for a missing path
            make_folder(target.parent, private_parent=home.root)
            # by descriptors: the script may replace a folder on the way by a link
            root = self.folder.root.parent
            move_below(root, str(path.relative_to(root)), target)
        except OSError as error:
            log(f"{path} was not moved: {error}")
            return None
        return target
