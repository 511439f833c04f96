"""Runs in each process of the gang that `benchmarks.live_control` measures. Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
import time

import hopyard as hop
from hopyard.sdk.command_file import CommandFile, map_cells

RESUME = 3  # the number of the command


def main(iterations: int, set_at: int, pause_at: int) -> None:
    """Trains nothing, but waits for the others in each iteration. Rank 0 stores a command while it is in one,
    as its replica would."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    params, sender = hop.params(lr=0.1), CommandFile(os.environ["HOPYARD_GANG_DIR"])
    sent = {
        set_at: {"number": 1, "kind": "set", "arguments": {"lr": 0.2}, "user": "bench"},
        pause_at: {"number": 2, "kind": "pause", "arguments": {}, "user": "bench"},
    }
    cells = map_cells(os.open("turns.bin", os.O_RDWR | os.O_CREAT), world)
    changed_at = resumed_at = -1
    for turn in hop.loop(range(iterations)):
        if changed_at < 0 and params.lr != 0.1:
            changed_at = turn
        if resumed_at < 0 and sender.newest == RESUME:  # stored while all wait
            resumed_at = turn
        if rank == 0 and turn in sent:
            sender.append([sent[turn]])
        cells[rank] = turn + 1
        while min(cells) <= turn:  # as in a collective operation
            time.sleep(0.0005)
    print(json.dumps({"changed": changed_at, "resumed": resumed_at}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
