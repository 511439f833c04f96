"""Counts the tasks that Spark can run at once: a barrier stage with more tasks would wait forever."""

from __future__ import annotations

import sys
import time
from typing import Any

from hopyard.errors import SpecError

_STABLE_S = 2.0  # executors join one by one
_POLL_INTERVAL_S = 0.2


def count_slots(spark: Any) -> int:
    """As of now: cores, `spark.task.cpus` and what tasks need of other resources are all counted."""
    scheduler = spark.sparkContext._jsc.sc()
    return int(scheduler.maxNumConcurrentTasks(scheduler.resourceProfileManager().defaultResourceProfile()))


def check_session(spark: Any) -> None:
    """Raises SpecError for a session that is not classic, or that would release executors during the
    study."""
    try:
        conf = spark.sparkContext.getConf()
    except Exception as lacking:  # Spark Connect has none
        raise SpecError(
            f"MopBackend needs a classic SparkSession; {type(spark).__module__}.{type(spark).__name__} "
            "has no sparkContext",
            hints=(
                "SparkSession.builder.master(…).getOrCreate() makes one",
                "Spark Connect has no barrier stages for programs of several processes",
            ),
        ) from lacking
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise SpecError(
            "a barrier stage cannot run under dynamic allocation",
            hints=("set spark.dynamicAllocation.enabled=false",),
        )


def wait_for_slots(spark: Any, workers: int | None, *, wait_s: float) -> int:
    """The number of workers, once Spark has room for so many at once; None: as many as there are when no more
    join. Raises SpecError that names the settings when `wait_s` has passed."""
    began_at = changed_at = time.monotonic()
    slots, said = count_slots(spark), False
    while True:
        now = time.monotonic()
        if workers is None and slots and (now - changed_at >= _STABLE_S or now - began_at >= wait_s):
            return slots
        if workers is not None and slots >= workers:
            return workers
        if now - began_at >= wait_s:
            raise SpecError(slots_error(workers or 1, slots), hints=slot_settings(spark))
        if workers is not None and not said and now - began_at >= _STABLE_S:
            said = True
            print(
                f"hopyard: waiting for executors: {workers} slots are needed, and Spark has {slots}",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(_POLL_INTERVAL_S)
        seen = count_slots(spark)
        slots, changed_at = seen, now if seen != slots else changed_at


def slots_error(workers: int, slots: int) -> str:
    return f"workers: {workers} tasks must run at once, but Spark has only {slots} slots now"


def slot_settings(spark: Any) -> tuple[str, ...]:
    """Returns the settings that decide the number of slots, with their current values."""
    conf = spark.sparkContext.getConf()
    cpus = conf.get("spark.task.cpus", "1")
    more = (
        "more cores (master local[8])"
        if spark.sparkContext.master.startswith("local[")
        else "more executors or cores (spark.executor.instances, spark.executor.cores, spark.cores.max)"
    )
    hints = [
        f"{more}, or fewer workers",
        f"spark.task.cpus={cpus}: cores that each task takes",
    ]
    gpus = conf.get("spark.task.resource.gpu.amount", "")
    if gpus:
        each = conf.get("spark.executor.resource.gpu.amount", "0")
        hints.append(
            f"spark.task.resource.gpu.amount={gpus}, spark.executor.resource.gpu.amount={each}: GPUs "
            "that each task takes, and that each executor has"
        )
    return tuple(hints)
