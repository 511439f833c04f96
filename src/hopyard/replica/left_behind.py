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
from hopyard.replica.diary import say
from hopyard.replica.folder import Folder


@dataclass(slots=True)
class LeftBehind:
    """Moves such folders out of the attempt's, which is removed at the end.
    The news travels in the stream of events."""

    folder: Folder
    spec: ReplicaSpec
    _untold: list[str] = field(default_factory=list)
    _telling: threading.Lock = field(default_factory=threading.Lock)  # several threads have something to say

    def keep(self, what: str, path: Path, why: Exception | str) -> None:
        """what: as a sentence begins ("the checkpoint of step 5"). path: its folder, which may be gone."""
        kept = self._move(path)
        where = (
            f"it is kept in {kept} on node {self.spec.node.id}"
            if kept
            else "its folder could not be kept either"
        )
        text = f"{what} could not be stored: {why}; {where}"
        self.add(text)
        self.tell()

    def add(self, text: str) -> None:
        """Something else that the run says; `tell` does."""
        say(text)
        self._untold.append(text)

    def tell(self) -> None:
        """Say what is not said yet. A disk that is full now may have room later: call it again."""
        with self._telling, suppress(OSError):
            while self._untold:
                self.folder.append_json("events", kind=UNSTORED, text=self._untold[0])
                del self._untold[0]

    def _move(self, path: Path) -> Path | None:
        launch = self.spec.launch
        home = Home(Path(self.spec.node.home))
        target = home.kept_of(launch.run) / f"{launch.attempt}-{launch.rank}" / path.name
        try:
            path.lstat()  # first: for nothing no folder is made
            make_folder(target.parent, below=home.root)
            path.rename(target)
        except OSError as failed:
            say(f"{path} stays where it is: {failed}")
            return None
        return target
