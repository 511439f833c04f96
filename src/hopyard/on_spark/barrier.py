"""Workers as the tasks of a barrier stage: all of them start together, or none."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.on_spark.frames import Written

SHIPPED = "shipped_trainable.py"  # in a worker's folder of code: what the driver's process sent


@dataclass(frozen=True, slots=True)
class Post:
    """What every worker gets with its closure. trainable: made by Spark's own pickler; b"" where `spec.mop.trainable` names a file
    or module that executors have."""

    address: str
    secret: bytes
    spec: StudySpec
    written: Written
    trainable: bytes
    patience_s: float


class Stage:
    """One barrier stage on a thread of its own, from the first task's start to the last one's end."""

    def __init__(self, spark: Any, post: Post, *, workers: int) -> None:
        self._spark, self._post, self._workers = spark, post, workers
        self._group = f"hopyard-{uuid.uuid4().hex[:12]}"
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hopyard-spark-stage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def error(self) -> BaseException | None:
        """What ended the stage, if it ended badly."""
        return self._failed

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self, timeout_s: float) -> None:
        """Wait for the workers to leave; after `timeout_s` Spark cancels them."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        context = self._spark.sparkContext
        post = self._post
        try:
            context.setLocalProperty("spark.jobGroup.id", self._group)
            context.setLocalProperty("spark.job.interruptOnCancel", "true")
            stage = context.parallelize(range(self._workers), self._workers).barrier()
            stage.mapPartitions(lambda numbers: work(numbers, post)).collect()
        except BaseException as failed:
            self._failed = failed


def work(numbers: Iterator[int], post: Post) -> Iterator[str]:
    """One task: a worker until the driver says that the study is over."""
    from pyspark import BarrierTaskContext

    from hopyard.on_spark.reading import StoredPartitions
    from hopyard.studies.worker.run import run_worker

    number = next(iter(numbers))
    context: Any = BarrierTaskContext.get()
    _use_gpus(context)
    with tempfile.TemporaryDirectory(prefix="hopyard-spark-") as name:
        code = Path(name)
        if post.trainable:
            (code / SHIPPED).write_text(f"from pyspark import cloudpickle\n\ntrainable = cloudpickle.loads({post.trainable!r})\n")
        yield run_worker(
            post.address,
            post.secret,
            post.spec,
            lambda plan: StoredPartitions(post.written, plan),
            f"worker-{number}",
            scratch_of(post.secret),
            code=code,
            patience_s=post.patience_s,
        )


def scratch_of(secret: bytes) -> Path:
    """Where states lie that do not fit into shared memory: the same for all workers of a host, and for the driver."""
    return Path(tempfile.gettempdir()) / f"hopyard-spark-{hashlib.blake2b(secret, digest_size=8).hexdigest()}"


def _use_gpus(context: Any) -> None:
    """Those that Spark found for this task (spark.task.resource.gpu.amount), and no others."""
    import os

    found = context.resources().get("gpu")
    if found is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(found.addresses)


def pickled(trainable: Any) -> bytes:
    """Raises SpecError naming what cannot be sent."""
    from pyspark import cloudpickle

    try:
        return bytes(cloudpickle.dumps(trainable))  # type: ignore[no-untyped-call]
    except Exception as failed:
        raise SpecError(
            f"the trainable cannot be sent to executors: {type(failed).__name__}: {failed}",
            hints=("keep open files, sockets and Spark's own objects out of it",),
        ) from failed
