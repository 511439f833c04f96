"""The training of `benchmarks.chaos`: four ranks that meet in each iteration, as in an all-reduce.

Each rank writes a ledger of its own, outside of Hopyard's folders: a line after each call of `hop.log` that
has returned. The checks compare the run with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import hopyard as hop

SAVE_S = 0.15  # how long the pickling of a checkpoint takes


class Total:
    """The state of the training, slow to save, so that faults hit a checkpoint in progress."""

    def __init__(self, saving: Path) -> None:
        self.value, self.saving = 0, saving

    def getstate(self) -> int:
        self.saving.touch()
        time.sleep(SAVE_S)
        return self.value

    def setstate(self, value: int) -> None:
        self.value = value


def main() -> None:
    p = hop.params(lr=1.0, ledger="", pace=0.02)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt, folder = int(os.environ["HOPYARD_ATTEMPT"].rpartition(".")[2]), Path(p.ledger)
    gate, last = folder / "gate", folder / "last"
    total = Total(folder / "saving")
    hop.bind(total=total)
    loader = subprocess.Popen(["sleep", "600"])  # as a worker that loads data
    try:
        with (folder / f"{attempt}.{rank}.jsonl").open("a", buffering=1) as ledger:
            for step in hop.loop(range(1_000_000), every=8):
                if rank == 0 and gate.exists() and not last.exists():
                    # a process that was started again may be behind the others
                    met = (int(turn.name.split(".")[2]) for turn in folder.glob(f"turn.{attempt}.*.0"))
                    new = folder / "last.new"
                    new.write_text(str(max(step, *met, 0) + 1))
                    new.rename(last)
                turns = [folder / f"turn.{attempt}.{step}.{other}" for other in range(world)]
                turns[rank].touch()
                while not all(turn.exists() for turn in turns):
                    time.sleep(0.005)
                time.sleep(p.pace)
                total.value += step
                hop.log(total=total.value, lr=p.lr, step=step)
                ledger.write(json.dumps({"step": step, "total": total.value, "lr": p.lr}) + "\n")
                print("step", step, total.value, flush=True)
                if last.exists() and step >= int(last.read_text()):
                    hop.summary(total=total.value)
                    break
    finally:
        loader.kill()
        loader.wait()


if __name__ == "__main__":
    main()
