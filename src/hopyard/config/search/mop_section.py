"""The part of `search.yaml` that only model hopper parallelism has: trainable, workers, dataset,
partitions."""

from __future__ import annotations

import re
from pathlib import Path

from hopyard.config import units
from hopyard.config.code_check import check_reference
from hopyard.config.run_request import parse_dataset
from hopyard.config.section_values import read_flag
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.run import MAX_REPLICAS
from hopyard.domain.study import MopSpec, PartitionPlan

WORKER_COMMAND = ("python", "-u", "-m", "hopyard.studies")
PARTITION_KEYS = ("parts", "validation", "validation_from", "stratify", "columns", "files", "seed", "format")
FORMATS = ("parquet", "npy", "npz", "images", "tar", "text")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+%?")
_MAX_PARTS, _MAX_THREADS, _MAX_SEED = MAX_REPLICAS, 1024, 2**63 - 1


def read_mop(top: YamlSection, folder: Path) -> MopSpec:
    """`folder`: of the code, where a trainable's file is looked up. Raises SpecError."""
    if not top.contains("workers"):
        raise top.error(
            "workers", "missing", "how many replicas train, each with its partition of the data: `workers: 4`"
        )
    workers = top.integer("workers", 1, low=1, high=MAX_REPLICAS - 1)
    return MopSpec(
        trainable=_read_trainable(top, folder),
        workers=workers,
        dataset=read_dataset(top)[0],
        partitions=_read_partition_plan(top, workers),
        deterministic=read_flag(top, "deterministic", default=True),
        threads=top.integer("threads", 0, low=1, high=_MAX_THREADS),
        hybrid=read_flag(top, "hybrid", default=True),
        unit_timeout_s=_unit_timeout_s(top),
    )


def _unit_timeout_s(top: YamlSection) -> float:
    given_s = top.amount("unit_timeout", units.parse_time) or 0.0
    if 0 < given_s < 1:
        raise top.error(
            "unit_timeout",
            f"{given_s:g} seconds would end every unit",
            "a second at least, better many times what a unit takes: `unit_timeout: 10m`",
        )
    return given_s


def read_dataset(top: YamlSection) -> tuple[str, int]:
    """The name and the version of the study's dataset, 0 for the newest. Raises SpecError."""
    text = top.text("dataset")
    if not text:
        raise top.error(
            "dataset",
            "missing",
            "the data that is split between the workers: `dataset: mnist`, as `hop dataset push mnist "
            "PATH` named it",
        )
    return top.parsed("dataset", lambda: parse_dataset(text, what="dataset"))


def _read_partition_plan(top: YamlSection, workers: int) -> PartitionPlan:
    given = top.section("partitions").check_keys(*PARTITION_KEYS)
    parts = given.integer("parts", workers, low=1, high=_MAX_PARTS)
    if parts < workers:
        raise given.error(
            "parts",
            f"{parts} partition{'s' * (parts > 1)} for {workers} workers: some would have nothing to "
            "train on",
            f"at least as many as workers: `parts: {workers}`",
        )
    validation = _read_share(given)
    source = given.text("validation_from") or (
        str(given.values["validation"]) if isinstance(given.values.get("validation"), str) else ""
    )
    if validation and source:
        raise given.error(
            "validation_from", "a share of the rows is kept for validation already", "keep one of the two"
        )
    kind = given.text("format")
    if kind and kind not in FORMATS:
        raise given.error(
            "format", f"there is no format {format_given(kind)}", *unknown_name_hints(kind, FORMATS)
        )
    return PartitionPlan(
        parts=parts,
        seed=given.integer("seed", top.integer("seed", 0, low=0, high=_MAX_SEED), low=0, high=_MAX_SEED),
        validation=validation,
        validation_from=source,
        stratify=given.text("stratify"),
        columns=_read_columns(given),
        files=given.text("files"),
        format=kind,
    )


def _read_share(section: YamlSection) -> float:
    value = section.values.get("validation")
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        raise section.error(
            "validation",
            f"{format_given(value)} is a text",
            f"a share of the rows is a number, without quotes: `validation: {value.strip()}`",
        )
    if value is None or isinstance(value, str):  # a text is the folder or file that holds it
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise section.error(
            "validation",
            f"{format_given(value)} is not a share of the rows",
            "from 0 to below 1: `validation: 0.2`; or the folder or file that holds it",
        )
    return float(value)


def _read_columns(section: YamlSection) -> tuple[str, ...]:
    found: list[str] = []
    for at, column in section.items("columns"):
        if not isinstance(column, str) or not column:
            raise section.error(
                f"columns.{at}",
                f"{format_given(column)} is not the name of a column",
                f'write it in quotes: "{column}"',
            )
        if column in found:
            raise section.error(f"columns.{at}", f"{format_given(column)} is named twice")
        found.append(column)
    return tuple(found)


def _read_trainable(top: YamlSection, folder: Path) -> str:
    """`file.py:Name`, `file.py` or `module:Name`; of a file of the code, it is looked up whether it has the
    name."""
    text = top.text("trainable")
    if not text:
        raise top.error(
            "trainable", "missing", "what trains, with init, train and evaluate: `trainable: train.py:Digits`"
        )
    check_reference(top, "trainable", text, folder, functions=("init", "train"))
    return text
