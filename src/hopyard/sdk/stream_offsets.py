"""The sizes of streams at a checkpoint, to which they roll back with it. Standard library only."""

from __future__ import annotations

import os
import sys
from typing import Any

from hopyard.sdk.streams import stream_sizes


def own_offsets(folder: str) -> dict[str, int]:
    """Returns the sizes of this process's streams, with all its output."""
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    return stream_sizes(os.path.join(folder, "streams"))


def offsets_of_peers(gang: str | None, folder: str) -> dict[str, dict[str, int]]:
    """Returns the current sizes for the gang's other ranks on this node, since some may not record them
    themselves. folder: of this rank."""
    if not gang:
        return {}
    try:
        ranks = [name for name in os.listdir(gang) if name.isdecimal() and name != os.path.basename(folder)]
    except OSError:
        return {}
    sizes_by_rank = {rank: stream_sizes(os.path.join(gang, rank, "streams")) for rank in sorted(ranks)}
    return {rank: sizes for rank, sizes in sizes_by_rank.items() if sizes}


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        pass
