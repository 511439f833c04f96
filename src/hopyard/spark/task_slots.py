"""Counts the tasks that Spark can run at once: a barrier stage with more tasks would wait forever."""

from __future__ import annotations

import sys
import time
from typing import Any

from hopyard.errors import SpecError

_STABLE_S = 2.0  # executors join one by one
_POLL_INTERVAL_S = 0.2


def count_slots(spark: Any) -> int:
    """Returns the current number, based on cores, `spark.task.cpus` and the tasks' other resources."""
    scheduler = spark.sparkContext._jsc.sc()
    return int(scheduler.maxNumConcurrentTasks(scheduler.resourceProfileManager().defaultResourceProfile()))


def check_session(spark: Any) -> None:
    """Raises SpecError for a session that is not classic, or that would release executors during the
    study."""
    try:
        conf = spark.sparkContext.getConf()
    except Exception as error:  # Spark Connect has none
        raise SpecError(
            f"MopBackend needs a classic SparkSession; {type(spark).__module__}.{type(spark).__name__} "
            "has no sparkContext",
            hints=(
                "create one with SparkSession.builder.master(…).getOrCreate()",
                "Spark Connect has no barrier stages for programs of several processes",
            ),
        ) from error
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise SpecError(
            "a barrier stage cannot run under dynamic allocation",
            hints=("set spark.dynamicAllocation.enabled=false",),
        )


def wait_for_slots(spark: Any, workers: int | None, *, wait_s: float) -> int:
    """Returns the number of workers, once Spark has slots for them; None: as many as there are when no more
    executors join.

    Raises SpecError, with the relevant settings, after `wait_s`.
    """
    started_at = changed_at = time.monotonic()
    slots, has_printed = count_slots(spark), False
    while True:
        now = time.monotonic()
        if workers is None and slots and (now - changed_at >= _STABLE_S or now - started_at >= wait_s):
            return slots
        if workers is not None and slots >= workers:
            return workers
        if now - started_at >= wait_s:
            raise SpecError(slots_error(workers or 1, slots), hints=slot_settings(spark))
        if workers is not None and not has_printed and now - started_at >= _STABLE_S:
            has_printed = True
            print(
                f"hopyard: waiting for executors: {workers} slots are needed, and Spark has {slots}",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(_POLL_INTERVAL_S)
        new_count = count_slots(spark)
        slots, changed_at = new_count, now if new_count != slots else changed_at


def slots_error(workers: int, slots: int) -> str:
    return f"workers: {workers} tasks must run at once, but Spark has only {slots} slots now"


def slot_settings(spark: Any) -> tuple[str, ...]:
    """Returns the settings that decide the number of slots, with their current values."""
    conf = spark.sparkContext.getConf()
    cpus = conf.get("spark.task.cpus", "1")
    remedy = (
        "more cores (master local[8])"
        if spark.sparkContext.master.startswith("local[")
        else "more executors or cores (spark.executor.instances, spark.executor.cores, spark.cores.max)"
    )
    hints = [
        f"use {remedy}, or fewer workers",
        f"reduce spark.task.cpus={cpus}, the cores that each task needs",
    ]
    gpus = conf.get("spark.task.resource.gpu.amount", "")
    if gpus:
        executor_amount = conf.get("spark.executor.resource.gpu.amount", "0")
        hints.append(
            f"adjust spark.task.resource.gpu.amount={gpus}, the GPUs that each task needs, or "
            f"spark.executor.resource.gpu.amount={executor_amount}, the GPUs of each executor"
        )
    return tuple(hints)
