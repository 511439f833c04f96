"""Runs workers as the tasks of a barrier stage: all of them start together, or none."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.spark.partition_writer import StoredFrame

SHIPPED_MODULE = "shipped_trainable.py"  # in a worker's code folder: the trainable from the driver's process


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The data that every worker gets with its closure. trainable: pickled by Spark's own pickler; b"" if
    `spec.mop.trainable` names a file or module that executors have."""

    address: str
    secret: bytes
    spec: StudySpec
    partitions: StoredFrame
    trainable: bytes
    reconnect_timeout_s: float


class BarrierStage:
    """Runs one barrier stage at a time in a thread, from the first task's start to the last task's end.

    error: the reason for a failure; None if there is none or it was handled.
    """

    def __init__(self, spark: Any, setup: WorkerSetup, *, workers: int) -> None:
        self._spark, self._setup, self.workers = spark, setup, workers
        self._group = f"hopyard-{uuid.uuid4().hex[:12]}"
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises RuntimeError if it is running."""
        if self.is_running:
            raise RuntimeError("the stage is already running")
        self.error = None
        self._thread = threading.Thread(target=self._run, name="hopyard-spark-stage", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def active_workers(self) -> int:
        """Returns the number of running workers: all, or 0."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job_or_id) for job_or_id in tracker.getJobIdsForGroup(self._group)]
        stages = [
            tracker.getStageInfo(stage)
            for job_or_id in jobs
            if job_or_id is not None
            for stage in job_or_id.stageIds
        ]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def wait_for_exit(self, timeout_s: float) -> None:
        """Waits for the workers to exit; after `timeout_s` Spark cancels them."""
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        context = self._spark.sparkContext
        setup = self._setup
        try:
            context.setLocalProperty("spark.jobGroup.id", self._group)
            context.setLocalProperty("spark.job.interruptOnCancel", "true")
            stage = context.parallelize(range(self.workers), self.workers).barrier()
            stage.mapPartitions(lambda numbers: run_task(numbers, setup)).collect()
        except BaseException as error:
            self.error = error


def check_executors(spark: Any, workers: int) -> None:
    """Raises SpecError if an executor's Python lacks a package that workers need. Runs before data is
    written."""

    # a nested function is pickled by value: executors may have no hopyard to import it from
    def find_missing(_number: int) -> tuple[str, str, list[str]]:
        import sys
        from importlib.util import find_spec

        missing = [name for name in ("hopyard", "numpy", "pyarrow") if find_spec(name) is None]
        return sys.executable, ".".join(map(str, sys.version_info[:3])), missing

    results = spark.sparkContext.parallelize(range(workers), workers).map(find_missing).collect()
    for executable, version, missing in results:
        if missing:
            raise SpecError(
                f"executors run {executable} (Python {version}), which has no {' and no '.join(missing)}",
                hints=(
                    (
                        f"set PYSPARK_PYTHON={sys.executable} before the session is created, if executors "
                        "have this interpreter"
                    ),
                    "or install hopyard[spark] there, or ship an environment with spark.archives",
                ),
            )


def run_task(numbers: Iterator[int], setup: WorkerSetup) -> Iterator[str]:
    """Runs one task: a worker until the driver ends the study."""
    from pyspark import BarrierTaskContext

    from hopyard.mop_runtime.worker.run_worker import run_worker
    from hopyard.spark.partition_reader import StoredPartitions

    number = next(iter(numbers))
    context: Any = BarrierTaskContext.get()
    _use_gpus(context)
    with tempfile.TemporaryDirectory(prefix="hopyard-spark-") as name:
        code = Path(name)
        if setup.trainable:
            (code / SHIPPED_MODULE).write_text(
                f"from pyspark import cloudpickle\n\ntrainable = cloudpickle.loads({setup.trainable!r})\n"
            )
        yield run_worker(
            setup.address,
            setup.secret,
            setup.spec,
            lambda plan: StoredPartitions(setup.partitions, plan),
            f"worker-{number}",
            scratch_dir(setup.secret),
            code_dir=code,
            reconnect_timeout_s=setup.reconnect_timeout_s,
        )


def scratch_dir(secret: bytes) -> Path:
    """Returns the folder for states that do not fit into shared memory: the same for all workers of a host
    and for the driver."""
    return Path(tempfile.gettempdir()) / f"hopyard-spark-{hashlib.blake2b(secret, digest_size=8).hexdigest()}"


def _use_gpus(context: Any) -> None:
    """Restricts the process to the GPUs that Spark assigned to this task (spark.task.resource.gpu.amount)."""
    resource = context.resources().get("gpu")
    if resource is None:
        return
    addresses = ",".join(resource.addresses)
    torch = sys.modules.get("torch")  # from another stage: Spark reuses its Python processes
    if (
        torch is not None
        and torch.cuda.is_initialized()
        and os.environ.get("CUDA_VISIBLE_DEVICES") != addresses
    ):
        raise SpecError(
            f"this process already uses GPUs, and cannot switch to {addresses}",
            hints=("set spark.python.worker.reuse=false",),
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = addresses


def pickle_trainable(trainable: Any) -> bytes:
    """Pickles the trainable with the user's own modules, which executors do not have. Raises SpecError for
    objects that cannot be sent."""
    from pyspark import cloudpickle

    user_modules = _user_modules()
    for module in user_modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        return bytes(cloudpickle.dumps(trainable))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise SpecError(
            f"the trainable cannot be sent to executors: {type(error).__name__}: {error}",
            hints=("remove open files, sockets and Spark objects from it",),
        ) from error
    finally:
        for module in user_modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _user_modules() -> list[ModuleType]:
    """Returns the modules below the current folder that are not part of an environment."""
    current_folder, site_packages = str(Path.cwd()) + os.sep, f"{os.sep}site-packages{os.sep}"
    files = [
        (module, getattr(module, "__file__", None) or "")
        for module in list(sys.modules.values())
        if module is not None
    ]
    excluded = {"__main__", "hopyard"}
    return [
        module
        for module, file in files
        if file.startswith(current_folder)
        and site_packages not in file
        and module.__name__.partition(".")[0] not in excluded
        and module.__name__ in sys.modules
    ]
