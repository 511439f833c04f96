"""Model selection on Apache Spark: trials hop between barrier tasks, and each task holds one partition of a
DataFrame.

    from hopyard.spark import MopBackend, Study

    backend = MopBackend(spark, workers=4, store="hdfs:///hopyard")
    space = {"lr": "loguniform(1e-4, 1e-1)"}
    study = Study(backend, model, space=space, metric="acc", trials=16, epochs=5)
    summary = study.fit(frame, features=["age", "height"], labels="ill", validation=0.2)
    summary.best.params, summary.best_model().transform(other_frame)

Needs `pip install 'hopyard[spark]'`; docs/guides/spark.md describes the relevant settings of Spark.
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
    """The place of a study's workers: tasks of one barrier stage.

    spark: a SparkSession. workers: the number of tasks, each with one partition; by default the number of
    executor slots. store: the folder (URL) where partitions are written while a study runs; by default on the
    driver's disk, which executors on other machines cannot read. storage: settings for s3:// that override
    AWS_… of this process: access_key_id, secret_access_key, session_token, region, endpoint_url. host: the
    address under which executors reach the driver (default: spark.driver.host). wait_s: how long executors
    may take to join.

    Raises SpecError if Spark has too few slots, or the store is invalid.
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
        self._temporary_dir = tempfile.TemporaryDirectory(prefix="hopyard-store-")  # removed with this object
        folder = store.rstrip("/") if store else Path(self._temporary_dir.name).as_uri()
        self._store = partial(select_store, spark, settings=dict(storage or {}))
        self.store = self._store(folder).url
        self.workers = wait_for_slots(spark, workers, wait_s=wait_s)

    @property
    def scratch_ownership(self) -> ScratchOwnership:
        """The ownership of folders below the store."""
        return ScratchOwnership(self.spark, self._store, self.store)

    def folder(self, name: str) -> Store:
        """Returns a new folder below the store, once Spark has slots for the workers."""
        wait_for_slots(self.spark, self.workers, wait_s=self._wait_s)
        return self._store(f"{self.store}/{name}")


class Study:
    """A search by model hopper parallelism.

    trainable: an object or class with init, train and evaluate (docs/guides/trainables.md), which is sent to
    the executors; or text such as `"digits:Mlp"`, for a module that executors can import
    (spark.submit.pyFiles).

    settings: as in search.yaml: space, metric, goal, searcher, trials, epochs, concurrent, seed,
    deterministic, threads, hybrid, tensorboard, mlflow. folder: on the driver's disk, for the journal and
    saved states. An interrupted study resumes if `fit` is called again with the same folder and data. Raises
    SpecError for settings that would be invalid in a file.
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
        # a file that only executors have
        text = trainable if isinstance(trainable, str) else "shipped:trainable"
        search_settings = {
            **settings,
            "parallel": "mop",
            "trainable": text,
            "workers": backend.workers,
            "dataset": "frame",
        }
        self._folder = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="hopyard-study-"))
        self._spec: StudySpec = search_from_mapping(
            search_settings, Path.cwd(), path="Study", name=slug(name, fallback="study")
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
        """Writes `frame` as partitions, trains, removes the partitions, and returns the result.

        features: columns for the model's input (`x`: several numbers make one matrix). labels: the target
        column (`y`). validation: share of the rows that is held out for evaluation. stratify: distributes the
        values of the labels equally. Raises SpecError for invalid data or settings, StudyFailed if no trial
        succeeds.
        """
        backend, spec = self._backend, self._spec
        columns = (features,) if isinstance(features, str) else tuple(features)
        pickled_trainable = (
            b"" if isinstance(self._trainable, str) else barrier.pickle_trainable(self._trainable)
        )
        name = f"{spec.name}-{uuid.uuid4().hex[:12]}"
        store = backend.folder(name)
        barrier.check_executors(backend.spark, backend.workers)
        backend.scratch_ownership.remove_abandoned()
        with backend.scratch_ownership.hold(name):
            return self._run(frame, store, columns, labels, validation, stratify, pickled_trainable)

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
        stored = write_partitions(
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
            stored,
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
                self._trainable, pickled_trainable, stored.features, stored.label, stored.label_kind
            ),
        )
