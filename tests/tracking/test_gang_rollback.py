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


def visible_lengths(
    root: Path, events: Mapping[int, list[dict[str, Any]]], view: VisibleStreams, *, size: int
) -> dict[tuple[int, str], int]:
    async def cut() -> VisibleStreams:
        streams = FolderStreams(root)
        for rank, rank_events in events.items():
            data = b"".join(json.dumps(event).encode() + b"\n" for event in rank_events)
            await streams.append(A, rank, [Segment("events", 0, data)])
        rolled_back = await cut_all_ranks(streams, view, size=size)
        await streams.close()
        return rolled_back

    return {
        (rank, stream): offset for (_, rank, stream), offset in asyncio.run(cut()).visible_lengths.items()
    }


def step_event(step: int, stdout: int) -> dict[str, Any]:
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
        1: [
            step_event(4, 100),
            step_event(8, 200),
            step_event(12, 300),
        ],  # ahead or behind: its own word counts
        2: [step_event(4, 100)],  # it never reached this step: none of its output is retained
        3: [{"kind": "params", "values": {}}],  # it has no loop
        # nonsense cuts nothing
        4: [step_event(8, -5), {"kind": "turn", "step": "8", "offsets": 7}, {"kind": "turn"}],
    }
    assert visible_lengths(tmp_path, events, view, size=6) == {
        (0, "stdout"): 80,
        (1, "stdout"): 200,
        (3, "stdout"): 33,
    }


def test_saved_offsets_of_several_ranks_take_precedence(tmp_path: Path) -> None:
    view = VisibleStreams((A,), {(A, 0, "stdout"): 80, (A, 1, "stdout"): 5}, resume_points={A: (0, 8)})
    assert visible_lengths(tmp_path, {1: [step_event(8, 200)]}, view, size=2) == {
        (0, "stdout"): 80,
        (1, "stdout"): 5,
    }
