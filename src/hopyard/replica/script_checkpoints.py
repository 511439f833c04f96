"""The checkpoints that a script saves itself: when they are complete, and their records on the server."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from blake3 import blake3

from hopyard.domain.checkpoint_units import group_checkpoints, has_last_file, is_whole, step_of
from hopyard.domain.ids import Digest
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.manifest import Manifest
from hopyard.domain.metric_values import encode_values
from hopyard.replica.metric_history import MetricHistory
from hopyard.replica.server_connection import ServerConnection

if TYPE_CHECKING:
    from hopyard.api_client import types as api

Stamp = tuple[int, int, int]  # inode, size, mtime: stages of an upload change ctime
_MAX_METRICS = 1000  # of a record


def incomplete_checkpoints(
    groups: Mapping[str, Collection[str]], changed: Collection[str], unsettled: Collection[str]
) -> list[str]:
    """Returns the checkpoints that are being written. changed: files that differ from the stored ones.
    unsettled: those of them that may still change."""
    return [
        checkpoint
        for checkpoint, files in groups.items()
        if any(path in changed for path in files)
        and (
            any(path in unsettled for path in files)
            or (checkpoint not in files and not is_whole(files))  # a folder without its last file
        )
    ]


def closed_files(groups: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the files of checkpoints that get no further file: single ones, and folders with the file that
    their framework writes last."""
    return {
        path
        for checkpoint, files in groups.items()
        if checkpoint in files or has_last_file(files)
        for path in files
    }


@dataclass(slots=True)
class ScriptCheckpoints:
    """Records each new version of a checkpoint once, from the tree of stored files.

    recorded: the digest of the version of each checkpoint that the server has.
    """

    launch: ReplicaLaunch
    server: ServerConnection
    history: MetricHistory
    recorded: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    def group(self, paths: Collection[str]) -> dict[str, tuple[str, ...]]:
        return group_checkpoints(paths, self.launch.checkpoint_files)

    def mark_restored(self, tree: Manifest) -> None:
        """Notes that these are checkpoints of an earlier attempt, or of another run."""
        self.recorded = {path: digest for path, (digest, _, _) in self._versions(tree).items()}

    def record(self, tree: Manifest, stamps: Mapping[str, Stamp]) -> bool:
        """Sends the new versions in the order in which they were written. Returns whether there were any.
        Raises HopyardError; a later call sends the rest."""
        versions = self._versions(tree)
        self.recorded = {path: digest for path, digest in self.recorded.items() if path in versions}
        new = {path: version for path, version in versions.items() if self.recorded.get(path) != version[0]}
        written = {path: _written_at(version[2], stamps) for path, version in new.items()}
        for path in sorted(new, key=lambda path: (written[path], path)):
            digest, manifest, _ = new[path]
            self._send(path, digest, manifest, written[path])
            self.recorded[path] = digest
        return bool(new)

    def _send(self, path: str, digest: Digest, manifest: Manifest, written_at: float) -> None:
        step, metrics = self.history.values_at(written_at)
        self._count += 1
        named = step_of(path)
        launch = self.launch
        body: api.CheckpointIn = {
            "run": launch.run,
            "attempt": launch.attempt,
            "rank": launch.rank,
            "step": named if named is not None else (self._count if step is None else step),
            "manifest": digest,
            "size_bytes": manifest.size_bytes,
            "created_at": datetime.fromtimestamp(written_at, UTC).isoformat(),
            "metrics": encode_values(dict(list(metrics.items())[:_MAX_METRICS])),
            "path": path,
        }
        self.server.client.put_blob(digest, manifest.encode())
        self.server.client.create_attempt_checkpoint(launch.attempt, body)

    def _versions(self, tree: Manifest) -> dict[str, tuple[Digest, Manifest, tuple[str, ...]]]:
        """Returns the digest, the manifest and the paths of each checkpoint. Its manifest is a part of the
        tree, so that a fork can begin with it."""
        entries = {file.path: file for file in tree.files}
        versions = {}
        for checkpoint, files in self.group(entries).items():
            manifest = Manifest.build([entries[path] for path in files], [])
            digest = Digest(blake3(manifest.encode()).hexdigest())
            versions[checkpoint] = digest, manifest, files
        return versions


def _written_at(files: Collection[str], stamps: Mapping[str, Stamp]) -> float:
    """Returns the Unix time of the newest file. A script can set any time, also one that is no date."""
    newest = max((stamps[path][2] / 1e9 for path in files if path in stamps), default=0.0)
    return min(max(newest, 0.0), time.time())
