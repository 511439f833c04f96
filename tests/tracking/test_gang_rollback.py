"""All ranks of a gang roll back together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.domain.ids import AttemptId
from hopyard.interfaces.streams import Segment
from hopyard.stores.stream_files import FolderStreams
from hopyard.tracking.gang_rollback import cut_all_ranks
from hopyard.tracking.rollback import VisibleStreams

A = AttemptId("abcdefgh.1")


def cuts(
    root: Path, events: Mapping[int, list[dict[str, Any]]], view: VisibleStreams, *, size: int
) -> dict[tuple[int, str], int]:
    async def ask() -> VisibleStreams:
        streams = FolderStreams(root)
        for rank, said in events.items():
            data = b"".join(json.dumps(event).encode() + b"\n" for event in said)
            await streams.append(A, rank, [Segment("events", 0, data)])
        found = await cut_all_ranks(streams, view, size=size)
        await streams.close()
        return found

    return {
        (rank, stream): offset for (_, rank, stream), offset in asyncio.run(ask()).visible_lengths.items()
    }


def turn(step: int, stdout: int) -> dict[str, Any]:
    return {"kind": "turn", "step": step, "offsets": {"stdout": stdout}}


def test_each_rank_is_cut_at_checkpoint_step_or_last_observed_offset(tmp_path: Path) -> None:
    view = VisibleStreams((A, AttemptId("abcdefgh.2")), {(A, 0, "stdout"): 80}, resume_points={A: (0, 8)})
    saved = {
        "kind": "checkpoint",
        "step": 8,
        "offsets": {"stdout": 80},
        "peers": {
            "1": {"stdout": 11},
            "2": {"stdout": 22},
            "3": {"stdout": 33},
            "x": 1,
            "7" * 5000: {"stdout": 1},
        },
    }
    events = {
        0: [{"kind": "checkpoint", "step": 4, "peers": {"3": {"stdout": 1}}}, saved, {**saved, "step": 12}],
        1: [turn(4, 100), turn(8, 200), turn(12, 300)],  # ahead or behind: its own word counts
        2: [turn(4, 100)],  # it never came to this turn: nothing of what it said is said again
        3: [{"kind": "params", "values": {}}],  # it has no loop
        # nonsense cuts nothing
        4: [turn(8, -5), {"kind": "turn", "step": "8", "offsets": 7}, {"kind": "turn"}],
    }
    assert cuts(tmp_path, events, view, size=6) == {(0, "stdout"): 80, (1, "stdout"): 200, (3, "stdout"): 33}


def test_saved_offsets_of_several_ranks_take_precedence(tmp_path: Path) -> None:
    view = VisibleStreams((A,), {(A, 0, "stdout"): 80, (A, 1, "stdout"): 5}, resume_points={A: (0, 8)})
    assert cuts(tmp_path, {1: [turn(8, 200)]}, view, size=2) == {(0, "stdout"): 80, (1, "stdout"): 5}
