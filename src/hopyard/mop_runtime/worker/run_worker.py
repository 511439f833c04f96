"""A worker, from its first word to the driver to the end of the study."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hopyard.domain.ids import WorkerId
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.mop_runtime import watchdog
from hopyard.mop_runtime.worker import process_setup
from hopyard.mop_runtime.worker.open_partitions import OpenDataset, open_dataset_folder
from hopyard.mop_runtime.worker.worker import Worker
from hopyard.private_files import make_folder
from hopyard.trial_state.shared_memory_store import SHARED_MEMORY_DIR, StateStore

RECONNECT_TIMEOUT_S = 600.0  # without a driver; one that was killed is back within seconds


def run_worker(
    address: str,
    secret: bytes,
    spec: StudySpec,
    open_dataset: Path | OpenDataset,
    worker: str,
    scratch_dir: Path,
    *,
    code_dir: Path | None = None,
    host: str = "",
    memory: Path = SHARED_MEMORY_DIR,
    reconnect_timeout_s: float = RECONNECT_TIMEOUT_S,
    untrusted: bool = False,
) -> str:
    """Work for the driver at `address` (`host:port`) until it says that the study is over; returns its
    reason.

    open_dataset: the folder of the dataset, or a function that opens partitions by their plan. worker: a name
    that no other worker of the study has. scratch_dir: a folder on disk that all workers of this host share.
    code_dir: the folder of the user's code (that of the process). Indexes of partitions are kept in
    `scratch_dir`. host: the address under which other workers reach this one (that from which the driver sees
    it come). memory: where files lie in shared memory. untrusted: the study began with states of another
    user: only tensors, arrays and plain values are read of states.

    Called on the main thread of a process of its own. Raises SpecError where the study has no workers,
    ServerUnavailable where no driver answers for `reconnect_timeout_s`.
    """
    if spec.mop is None:
        raise SpecError("the study trains each trial as a run of its own: it has no workers")
    watchdog.start_heartbeat()
    process_setup.apply_determinism(spec.mop.deterministic, spec.mop.threads)
    make_folder(scratch_dir)
    if isinstance(open_dataset, Path):
        open_dataset = open_dataset_folder(open_dataset, scratch_dir / "partitions", dataset=spec.mop.dataset)
    shelf = StateStore(hashlib.blake2b(secret, digest_size=8).hexdigest(), scratch_dir, memory=memory)
    try:
        with_driver = Worker(
            address,
            secret,
            shelf,
            open_dataset,
            WorkerId(worker),
            code_dir or Path.cwd(),
            host,
            reconnect_timeout_s,
            untrusted=untrusted,
        )
        try:
            return with_driver.run()
        finally:
            with_driver.close()
    finally:
        shelf.close()
