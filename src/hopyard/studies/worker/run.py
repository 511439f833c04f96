"""A worker, from its first word to the driver to the end of the study."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hopyard.domain.ids import WorkerId
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.private_files import make_folder
from hopyard.studies import pulse
from hopyard.studies.states.shelf import MEMORY, Shelf
from hopyard.studies.worker import process
from hopyard.studies.worker.opening import Data, data_of_folder
from hopyard.studies.worker.worker import Worker

PATIENCE_S = 600.0  # without a driver; one that was killed is back within seconds


def run_worker(
    address: str,
    secret: bytes,
    spec: StudySpec,
    data: Path | Data,
    worker: str,
    scratch: Path,
    *,
    code: Path | None = None,
    host: str = "",
    memory: Path = MEMORY,
    patience_s: float = PATIENCE_S,
    foreign: bool = False,
) -> str:
    """Work for the driver at `address` (`host:port`) until it says that the study is over; returns its
    reason.

    data: the folder of the dataset, or a function that opens partitions by their plan. worker: a name that no
    other worker of the study has. scratch: a folder on disk that all workers of this host share. code: the
    folder of the user's code (that of the process). Indexes of partitions are kept in `scratch`. host: the
    address under which other workers reach this one (that from which the driver sees it come). memory: where
    files lie in shared memory. foreign: the study began with states of another user: only tensors, arrays and
    plain values are read of states.

    Called on the main thread of a process of its own. Raises SpecError where the study has no workers,
    ServerUnavailable where no driver answers for `patience_s`.
    """
    if spec.mop is None:
        raise SpecError("the study trains each trial as a run of its own: it has no workers")
    pulse.give()
    process.settle(spec.mop.deterministic, spec.mop.threads)
    make_folder(scratch)
    if isinstance(data, Path):
        data = data_of_folder(data, scratch / "partitions", dataset=spec.mop.dataset)
    shelf = Shelf(hashlib.blake2b(secret, digest_size=8).hexdigest(), scratch, memory=memory)
    try:
        with_driver = Worker(
            address,
            secret,
            shelf,
            data,
            WorkerId(worker),
            code or Path.cwd(),
            host,
            patience_s,
            foreign=foreign,
        )
        try:
            return with_driver.work()
        finally:
            with_driver.close()
    finally:
        shelf.close()
