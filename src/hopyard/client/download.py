"""Downloads a stored tree into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.feedback import ProgressFactory, no_progress

if TYPE_CHECKING:
    from hopyard.domain.manifest import Manifest


def download_tree(
    client: Client,
    digest: str,
    into: Path,
    *,
    merge: bool = False,
    on_progress: ProgressFactory = no_progress,
) -> Manifest:
    """Downloads the tree with this manifest into a new folder, and returns the manifest.

    merge: whether a folder that exists already is merged.
    """
    from hopyard.datasets.transfer import pull_tree
    from hopyard.domain.ids import Digest

    with on_progress() as progress:
        return pull_tree(Digest(digest), into, client, progress, merge=merge)
