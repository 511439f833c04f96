"""Model selection on Apache Spark: trials hop between barrier tasks, each of which keeps one partition of a
DataFrame.

    from hopyard.spark import MopBackend, Study

    study = Study(MopBackend(spark, workers=4, store="hdfs:///hopyard"), model, space={"lr": "loguniform(1e-4,
    1e-1)"}, metric="acc", trials=16, epochs=5) summary = study.fit(frame, features=["age", "height"],
    labels="ill", validation=0.2) summary.best.params, summary.best_model().transform(other_frame)

Needs `pip install 'hopyard[spark]'`; docs/guides/spark.md says which of Spark's settings matter.
"""

from __future__ import annotations

import inspect
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hopyard.config.search.search_file import search_from_mapping
from hopyard.domain.ids import slug
from hopyard.domain.study import MopSpec, StudySpec
from hopyard.errors import SpecError
from hopyard.spark import barrier
from hopyard.spark.best_model import BestModel as BestModel
from hopyard.spark.best_model import ModelSource
from hopyard.spark.partition_writer import remove_partitions, write_partitions
from hopyard.spark.scratch_ownership import ScratchOwnership
from hopyard.spark.stores.select import select_store
from hopyard.spark.stores.store import Store
from hopyard.spark.study import SparkStudy
from hopyard.spark.summary import Summary as Summary
from hopyard.spark.task_slots import check_session, wait_for_slots

_NO_WORKER_TIMEOUT_S = 300.0  # without any worker


class MopBackend:
    """Where a study's workers run: tasks of one barrier stage.

    spark: a SparkSession. workers: tasks, each with one partition; by default as many as executors have slots
    for. store: the folder (URL) where partitions are written while a study runs; by default one of the
    driver's disk, which executors on other machines cannot read. storage: of s3://, where AWS_… of this
    process do not say it: access_key_id, secret_access_key, session_token, region, endpoint_url. host: the
    address under which executors reach the driver (spark.driver.host). wait_s: how long executors may take to
    join. Raises SpecError where Spark has no room for so many at once, or the store is none.
    """

    def __init__(
        self,
        spark: Any,
        workers: int | None = None,
        *,
        store: str | None = None,
        storage: Mapping[str, str] | None = None,
        host: str | None = None,
        wait_s: float = 60.0,
    ) -> None:
        if workers is not None and workers < 1:
            raise SpecError(f"workers: {workers} is out of range (at least 1)")
        check_session(spark)
        self.spark, self._wait_s = spark, wait_s
        self.host = host or spark.sparkContext.getConf().get("spark.driver.host", "127.0.0.1")
        self._temporary_dir = tempfile.TemporaryDirectory(prefix="hopyard-store-")  # goes with this object
        folder = store.rstrip("/") if store else Path(self._temporary_dir.name).as_uri()
        self._store = partial(select_store, spark, settings=dict(storage or {}))
        self.store = self._store(folder).url
        self.workers = wait_for_slots(spark, workers, wait_s=wait_s)

    @property
    def scratch_ownership(self) -> ScratchOwnership:
        """Of folders below the store."""
        return ScratchOwnership(self.spark, self._store, self.store)

    def folder(self, name: str) -> Store:
        """A new one below the store, once Spark has room for the workers."""
        wait_for_slots(self.spark, self.workers, wait_s=self._wait_s)
        return self._store(f"{self.store}/{name}")


class Study:
    """A search by model hopper parallelism. trainable: an object or class with init, train and evaluate
    (docs/guides/trainables.md), sent to the executors; or text such as `"digits:Mlp"`, of a module that
    executors can import (spark.submit.pyFiles).

    settings: as of a search.yaml: space, metric, goal, searcher, trials, epochs, concurrent, seed,
    deterministic, threads, hybrid, tensorboard, mlflow. folder: on the driver's disk, for the journal and
    saved states; a study that was broken off goes on where it was when `fit` is called again with the same
    folder and data.
    Raises SpecError for whatever would be refused in a file.
    """

    def __init__(
        self,
        backend: MopBackend,
        trainable: Any,
        /,
        *,
        name: str = "study",
        folder: Path | str | None = None,
        **settings: Any,
    ) -> None:
        self._backend, self._trainable = backend, trainable() if inspect.isclass(trainable) else trainable
        # a file that only executors will have
        text = trainable if isinstance(trainable, str) else "shipped:trainable"
        known = {
            **settings,
            "parallel": "mop",
            "trainable": text,
            "workers": backend.workers,
            "dataset": "frame",
        }
        self._folder = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="hopyard-study-"))
        self._spec: StudySpec = search_from_mapping(
            known, Path.cwd(), path="Study", name=slug(name, fallback="study")
        ).study

    def fit(
        self,
        frame: Any,
        *,
        features: Sequence[str] | str,
        labels: str,
        validation: float = 0.2,
        stratify: bool = False,
    ) -> Summary:
        """Write `frame` as partitions, train, remove them, and return what came of it.

        features: columns that go into the model (`x`: several numbers make one matrix); labels: the column
        that it learns (`y`). validation: share of the rows kept apart for evaluation. stratify: the labels'
        values in equal shares everywhere. Raises SpecError for data or settings that cannot be, StudyFailed
        when no trial comes to an end.
        """
        backend, spec = self._backend, self._spec
        columns = (features,) if isinstance(features, str) else tuple(features)
        shipped = b"" if isinstance(self._trainable, str) else barrier.pickle_trainable(self._trainable)
        name = f"{spec.name}-{uuid.uuid4().hex[:12]}"
        store = backend.folder(name)
        barrier.check_executors(backend.spark, backend.workers)
        backend.scratch_ownership.remove_abandoned()
        with backend.scratch_ownership.hold(name):
            return self._run(frame, store, columns, labels, validation, stratify, shipped)

    def _run(
        self,
        frame: Any,
        store: Store,
        columns: tuple[str, ...],
        labels: str,
        validation: float,
        stratify: bool,
        pickled_trainable: bytes,
    ) -> Summary:
        backend, spec = self._backend, self._spec
        assert spec.mop is not None
        written = write_partitions(
            frame,
            store,
            features=columns,
            label=labels,
            partition_count=backend.workers,
            validation=validation,
            seed=spec.seed,
            stratify=stratify,
        )
        trainable = f"{barrier.SHIPPED_MODULE}:trainable" if pickled_trainable else spec.mop.trainable
        mop: MopSpec = replace(
            spec.mop,
            trainable=trainable,
            partitions=replace(spec.mop.partitions, parts=backend.workers, validation=validation),
        )
        study = SparkStudy(
            backend.spark,
            replace(spec, mop=mop),
            written,
            trainable=pickled_trainable,
            folder=self._folder,
            host=backend.host,
            no_worker_timeout_s=_NO_WORKER_TIMEOUT_S,
        )
        try:
            summary = study.run()
        finally:
            remove_partitions(store, backend.spark)
        return replace(
            summary,
            model_source=ModelSource(
                self._trainable, pickled_trainable, written.features, written.label, written.label_kind
            ),
        )
