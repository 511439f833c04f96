"""Compares the stored files of a script with the earlier ones: a new checkpoint is progress of the run."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.controller.manifests import decode_manifest
from hopyard.domain.checkpoint_files import is_checkpoint
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry
from hopyard.domain.run import Run
from hopyard.errors import IntegrityError, NotFound
from hopyard.interfaces.blobs import Blobs


async def has_new_checkpoint(blobs: Blobs, run: Run, manifest: Digest) -> bool:
    """Returns whether the tree has a checkpoint of the script that the run's stored files do not have.

    Logs and other files do not count: each attempt of a run that kills its node writes some. The first
    attempt has no earlier losses, so its files are not read.
    """
    if run.attempt is None or run.attempt.number == 1:
        return False
    checkpoints = await _read_checkpoints(blobs, run, manifest)
    if not checkpoints or run.run_folder is None:
        return bool(checkpoints)
    earlier = await _read_checkpoints(blobs, run, run.run_folder)
    return any(earlier.get(path) != entry for path, entry in checkpoints.items())


async def _read_checkpoints(blobs: Blobs, run: Run, manifest: Digest) -> Mapping[str, FileEntry]:
    try:
        tree = await decode_manifest(await blobs.get(manifest))
    except (IntegrityError, NotFound):  # set aside since it was recorded
        return {}
    patterns = run.spec.checkpoint_files
    return {file.path: file for file in tree.files if is_checkpoint(file.path, patterns)}
