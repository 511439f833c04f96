"""Uploads the files that a run created or changed in its working folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.datasets.output_files import (
    RETAINED_OBSTACLES,
    ChangedFiles,
    FileStamps,
    changed_since,
    describe_paths,
    select_storable,
)
from hopyard.datasets.output_scan import UnstoredReason
from hopyard.domain.replica import ReplicaSpec
from hopyard.errors import (
    BlobsOnOtherServer,
    Conflict,
    HopyardError,
    IntegrityError,
    MissingBlobs,
    NotFound,
    is_transient,
)
from hopyard.replica.checkpoint_uploads import RETRY_INTERVAL_S, RETRYABLE_ERRORS, UploadTimeout
from hopyard.replica.prepare import open_tree_cache
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection
from hopyard.replica.unstored_folders import UnstoredFolders
from hopyard.replica.uploads import stage_files, upload_files

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@dataclass(slots=True)
class OutputUploader:
    """has_own_folder: whether this replica of a gang has a working folder of its own. initial_stamps: of the
    files in the working folder before the script began; None if unknown."""

    folder: ReplicaDir
    spec: ReplicaSpec
    server: ServerConnection
    unstored: UnstoredFolders
    is_stopping: Callable[[], bool]
    has_own_folder: bool = False
    initial_stamps: FileStamps | None = None

    def upload(self) -> None:
        """Uploads the files that the run created or changed in its folder. A failure is reported, but does
        not fail the run.

        Waits for a server without space, unless the run was requested to end.
        """
        launch, timeout = self.spec.launch, UploadTimeout()
        while True:
            try:
                changed = self.find_changed()
                omitted = changed.select(launch.outputs)
                outputs = select_storable(self.folder.work, changed)
                if outputs.files or outputs.links:
                    client = self.server.client
                    work = self.folder.work
                    digest = upload_files(client, work.parent, work, outputs.files, outputs.links)
                    artifact: api.ArtifactIn = {"manifest": digest}
                    if self.has_own_folder:
                        artifact["rank"] = launch.rank
                    client.record_artifact(launch.attempt, artifact)
                self._retain_unstored(outputs.unstored)
                if omitted:
                    verb = "is" if len(omitted) == 1 else "are"
                    self.unstored.queue_message(
                        f"{describe_paths(omitted)} {verb} not kept: `--outputs` does not select them"
                    )
                return
            except (HopyardError, OSError) as error:
                if not _is_own_folder(self.folder.work) and self.folder.exists():
                    self.unstored.queue_message(
                        "files written by the run are not stored: the folder was removed or replaced "
                        "by a link"
                    )
                    self.unstored.report_pending()
                    return
                if isinstance(error, RETRYABLE_ERRORS) or is_transient(error):
                    log(f"the run's files wait: {error}")
                    if not self.folder.exists():
                        return
                    if timeout.is_expired(error, is_stopping=self.is_stopping()):
                        self._skip(error)
                        return
                    if not self.server.rediscover():
                        time.sleep(RETRY_INTERVAL_S)
                elif isinstance(error, Conflict):
                    return  # a later attempt uploads its own
                else:
                    self._skip(error)
                    return

    def _skip(self, reason: Exception) -> None:
        self.unstored.retain("the output of the run in its folder", self.folder.work, reason)

    def _retain_unstored(self, unstored: Mapping[str, UnstoredReason]) -> None:
        """Keeps files that no tree can store on the node, and reports their location."""
        for unstored_reason in UnstoredReason:
            paths = [path for path, reason in unstored.items() if reason is unstored_reason]
            if not paths:
                continue
            folder, files = (
                None,
                [
                    path
                    for path in paths
                    if unstored_reason in RETAINED_OBSTACLES and (self.folder.work / path).is_file()
                ],
            )
            if files:
                with suppress(OSError):
                    work = self.folder.work
                    folder = stage_files(work.parent, work, {path: path for path in files})
            if folder is None:
                self.unstored.queue_message(f"{describe_paths(paths)} could not be stored: {unstored_reason}")
            else:
                self.unstored.retain(describe_paths(paths), folder, unstored_reason)

    def find_changed(self) -> ChangedFiles:
        """Returns the files of the run's folder that are new or differ from its code."""
        work, code = self.folder.work, self.spec.launch.code
        changed = changed_since(work, self.initial_stamps)
        launch = self.spec.launch
        places = {*(ref.path for ref in launch.datasets), *launch.environment.links}
        changed.links = [path for path in changed.links if path not in places]
        if not (changed.files or changed.links or changed.unstored) or code is None:
            return changed
        try:
            with open_tree_cache(self.spec, self.folder).open_tree(code, self.server.client.fetch) as tree:
                return changed.without_unchanged(work, tree)
        except (BlobsOnOtherServer, IntegrityError, MissingBlobs, NotFound) as error:
            log(f"all changed files are sent, because the code of the run is unavailable: {error}")
            return changed


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
