"""A worker in a process of its own: `python -m tests.studies.worker.process SETTINGS`, a JSON object."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

from hopyard.domain.space import Space
from hopyard.domain.study import Goal, MopSpec, Parallel, PartitionPlan, StudySpec
from hopyard.studies.worker.main import leave
from hopyard.studies.worker.run import run_worker


def main() -> None:
    said = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    folder = Path(said["folder"])
    mop = MopSpec("code.py", said["workers"], "digits", PartitionPlan(said["workers"]), deterministic=True)
    spec = StudySpec("study", Space(()), "loss", Goal.MIN, Parallel.MOP, mop=mop)
    signal.signal(signal.SIGTERM, leave)
    reason = run_worker(
        said["address"],
        bytes.fromhex(said["secret"]),
        spec,
        folder / "data",
        said["worker"],
        folder / "scratch",
        code=folder / "code",
        memory=Path(said["memory"]),
        patience_s=said["patience_s"],
    )
    print(f"left: {reason}")


if __name__ == "__main__":
    main()
