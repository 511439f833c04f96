"""Workers as the tasks of a barrier stage: all of them start together, or none."""

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

SHIPPED_MODULE = "shipped_trainable.py"  # in a worker's folder of code: what the driver's process sent


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What every worker gets with its closure. trainable: made by Spark's own pickler; b"" where
    `spec.mop.trainable` names a file or module that executors have."""

    address: str
    secret: bytes
    spec: StudySpec
    partitions: StoredFrame
    trainable: bytes
    reconnect_timeout_s: float


class BarrierStage:
    """One barrier stage at a time on a thread of its own, from the first task's start to the last one's end.

    error: what ended it, if it ended badly; None says that somebody has seen to it.
    """

    def __init__(self, spark: Any, setup: WorkerSetup, *, workers: int) -> None:
        self._spark, self._setup, self.workers = spark, setup, workers
        self._group = f"hopyard-{uuid.uuid4().hex[:12]}"
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises RuntimeError while it runs."""
        if self.is_running:
            raise RuntimeError("the stage runs")
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
        found = [tracker.getJobInfo(one) for one in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for one in found if one is not None for stage in one.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def wait_for_exit(self, timeout_s: float) -> None:
        """Wait for the workers to leave; after `timeout_s` Spark cancels them."""
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        context = self._spark.sparkContext
        post = self._setup
        try:
            context.setLocalProperty("spark.jobGroup.id", self._group)
            context.setLocalProperty("spark.job.interruptOnCancel", "true")
            stage = context.parallelize(range(self.workers), self.workers).barrier()
            stage.mapPartitions(lambda numbers: run_task(numbers, post)).collect()
        except BaseException as failed:
            self.error = failed


def check_executors(spark: Any, workers: int) -> None:
    """Raises SpecError if an executor's Python lacks a package that workers need. Runs before data is
    written."""

    # inside, so that it travels as it is: there may be no hopyard to find it in
    def look(_number: int) -> tuple[str, str, list[str]]:
        import sys
        from importlib.util import find_spec

        lacking = [name for name in ("hopyard", "numpy", "pyarrow") if find_spec(name) is None]
        return sys.executable, ".".join(map(str, sys.version_info[:3])), lacking

    found = spark.sparkContext.parallelize(range(workers), workers).map(look).collect()
    for executable, version, lacking in found:
        if lacking:
            raise SpecError(
                f"executors run {executable} (Python {version}), which has no {' and no '.join(lacking)}",
                hints=(
                    (
                        f"PYSPARK_PYTHON={sys.executable} before the session is made takes this one, where "
                        "executors have it"
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
    """Where states lie that do not fit into shared memory: the same for all workers of a host, and for the
    driver."""
    return Path(tempfile.gettempdir()) / f"hopyard-spark-{hashlib.blake2b(secret, digest_size=8).hexdigest()}"


def _use_gpus(context: Any) -> None:
    """Those that Spark found for this task (spark.task.resource.gpu.amount), and no others."""
    found = context.resources().get("gpu")
    if found is None:
        return
    wanted = ",".join(found.addresses)
    torch = sys.modules.get("torch")  # of another stage: Spark uses its Python processes again
    if torch is not None and torch.cuda.is_initialized() and os.environ.get("CUDA_VISIBLE_DEVICES") != wanted:
        raise SpecError(
            f"this process already uses GPUs, and cannot switch to {wanted}",
            hints=("set spark.python.worker.reuse=false",),
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = wanted


def pickle_trainable(trainable: Any) -> bytes:
    """With all that it uses of the user's own files, which executors do not have.
    Raises SpecError naming what cannot be sent."""
    from pyspark import cloudpickle

    own = _user_modules()
    for module in own:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        return bytes(cloudpickle.dumps(trainable))  # type: ignore[no-untyped-call]
    except Exception as failed:
        raise SpecError(
            f"the trainable cannot be sent to executors: {type(failed).__name__}: {failed}",
            hints=("remove open files, sockets and Spark objects from it",),
        ) from failed
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _user_modules() -> list[ModuleType]:
    """Modules below the current folder that are of no environment."""
    here, library = str(Path.cwd()) + os.sep, f"{os.sep}site-packages{os.sep}"
    files = [
        (module, getattr(module, "__file__", None) or "")
        for module in list(sys.modules.values())
        if module is not None
    ]
    ours = {"__main__", "hopyard"}
    return [
        module
        for module, file in files
        if file.startswith(here)
        and library not in file
        and module.__name__.partition(".")[0] not in ours
        and module.__name__ in sys.modules
    ]
