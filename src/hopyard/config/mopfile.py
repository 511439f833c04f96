"""The part of `search.yaml` that only model hopper parallelism has: trainable, workers, dataset,
partitions."""

from __future__ import annotations

import re
from pathlib import Path

from hopyard.config import units
from hopyard.config.codefile import check_named
from hopyard.config.reader import Section, shown
from hopyard.config.runspec import parse_dataset
from hopyard.config.suggest import hints_for
from hopyard.config.values import read_flag
from hopyard.domain.run import MAX_REPLICAS
from hopyard.domain.study import MopSpec, PartitionPlan

WORKER = ("python", "-u", "-m", "hopyard.studies")
PARTITION_KEYS = ("parts", "validation", "validation_from", "stratify", "columns", "files", "seed", "format")
FORMATS = ("parquet", "npy", "npz", "images", "tar", "text")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+%?")
_MOST_PARTS, _MOST_THREADS, _LARGEST_SEED = MAX_REPLICAS, 1024, 2**63 - 1


def read_mop(top: Section, folder: Path) -> MopSpec:
    """`folder`: of the code, where a trainable's file is looked up. Raises SpecError."""
    if not top.has("workers"):
        raise top.fail(
            "workers", "missing", "how many replicas train, each with its partition of the data: `workers: 4`"
        )
    workers = top.whole("workers", 1, low=1, high=MAX_REPLICAS - 1)
    return MopSpec(
        trainable=_trainable(top, folder),
        workers=workers,
        dataset=read_dataset(top)[0],
        partitions=_plan(top, workers),
        deterministic=read_flag(top, "deterministic", default=True),
        threads=top.whole("threads", 0, low=1, high=_MOST_THREADS),
        hybrid=read_flag(top, "hybrid", default=True),
        unit_timeout_s=_unit_timeout_s(top),
    )


def _unit_timeout_s(top: Section) -> float:
    given_s = top.amount("unit_timeout", units.parse_time) or 0.0
    if 0 < given_s < 1:
        raise top.fail(
            "unit_timeout",
            f"{given_s:g} seconds would end every unit",
            "a second at least, better many times what a unit takes: `unit_timeout: 10m`",
        )
    return given_s


def read_dataset(top: Section) -> tuple[str, int]:
    """The name and the version of the study's dataset, 0 for the newest. Raises SpecError."""
    text = top.text("dataset")
    if not text:
        raise top.fail(
            "dataset",
            "missing",
            "the data that is split between the workers: `dataset: mnist`, as `hop dataset push mnist "
            "PATH` named it",
        )
    return top.checked("dataset", lambda: parse_dataset(text, what="dataset"))


def _plan(top: Section, workers: int) -> PartitionPlan:
    given = top.section("partitions").only(*PARTITION_KEYS)
    parts = given.whole("parts", workers, low=1, high=_MOST_PARTS)
    if parts < workers:
        raise given.fail(
            "parts",
            f"{parts} partition{'s' * (parts > 1)} for {workers} workers: some would have nothing to "
            "train on",
            f"at least as many as workers: `parts: {workers}`",
        )
    validation = _share(given)
    source = given.text("validation_from") or (
        str(given.values["validation"]) if isinstance(given.values.get("validation"), str) else ""
    )
    if validation and source:
        raise given.fail(
            "validation_from", "a share of the rows is kept for validation already", "keep one of the two"
        )
    kind = given.text("format")
    if kind and kind not in FORMATS:
        raise given.fail("format", f"there is no format {shown(kind)}", *hints_for(kind, FORMATS))
    return PartitionPlan(
        parts=parts,
        seed=given.whole("seed", top.whole("seed", 0, low=0, high=_LARGEST_SEED), low=0, high=_LARGEST_SEED),
        validation=validation,
        validation_from=source,
        stratify=given.text("stratify"),
        columns=_columns(given),
        files=given.text("files"),
        format=kind,
    )


def _share(given: Section) -> float:
    value = given.values.get("validation")
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        raise given.fail(
            "validation",
            f"{shown(value)} is a text",
            f"a share of the rows is a number, without quotes: `validation: {value.strip()}`",
        )
    if value is None or isinstance(value, str):  # a text is the folder or file that holds it
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise given.fail(
            "validation",
            f"{shown(value)} is not a share of the rows",
            "from 0 to below 1: `validation: 0.2`; or the folder or file that holds it",
        )
    return float(value)


def _columns(given: Section) -> tuple[str, ...]:
    found: list[str] = []
    for at, column in given.items("columns"):
        if not isinstance(column, str) or not column:
            raise given.fail(
                f"columns.{at}",
                f"{shown(column)} is not the name of a column",
                f'write it in quotes: "{column}"',
            )
        if column in found:
            raise given.fail(f"columns.{at}", f"{shown(column)} is named twice")
        found.append(column)
    return tuple(found)


def _trainable(top: Section, folder: Path) -> str:
    """`file.py:Name`, `file.py` or `module:Name`; of a file of the code, it is looked up whether it has the
    name."""
    text = top.text("trainable")
    if not text:
        raise top.fail(
            "trainable", "missing", "what trains, with init, train and evaluate: `trainable: train.py:Digits`"
        )
    check_named(top, "trainable", text, folder, functions=("init", "train"))
    return text
