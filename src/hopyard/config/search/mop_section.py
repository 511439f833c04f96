"""The part of `search.yaml` that only model hopper parallelism has: trainable, workers, dataset,
partitions."""

from __future__ import annotations

import re
from pathlib import Path

from hopyard.config import units
from hopyard.config.code_check import check_reference
from hopyard.config.run_request import parse_dataset
from hopyard.config.schemas.studies import MopIn, PartitionPlanIn, StudyIn
from hopyard.config.section_values import read_field, read_positive_field
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.study import MopSpec, PartitionPlan

WORKER_COMMAND = ("python", "-u", "-m", "hopyard.studies")
PARTITION_KEYS = ("parts", "validation", "validation_from", "stratify", "columns", "files", "seed", "format")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+%?")


def read_mop(top: YamlSection, folder: Path) -> MopSpec:
    """`folder`: the folder of the code, in which the file of a trainable is searched. Raises SpecError."""
    if not top.contains("workers"):
        raise top.error(
            "workers", "missing", "how many replicas train, each with its partition of the data: `workers: 4`"
        )
    workers: int = read_field(top, "workers", MopIn)
    return MopSpec(
        trainable=_read_trainable(top, folder),
        workers=workers,
        dataset=read_dataset(top)[0],
        partitions=_read_partition_plan(top, workers),
        deterministic=read_field(top, "deterministic", MopIn),
        threads=read_positive_field(top, "threads", MopIn),
        hybrid=read_field(top, "hybrid", MopIn),
        unit_timeout_s=top.amount("unit_timeout", units.parse_time) or 0.0,
        order=read_field(top, "order", MopIn),
    )


def read_dataset(top: YamlSection) -> tuple[str, int]:
    """Returns the name and the version of the study's dataset, 0 for the newest. Raises SpecError."""
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
    section = top.section("partitions").check_keys(*PARTITION_KEYS)
    source = section.text("validation_from") or (
        str(section.values["validation"]) if isinstance(section.values.get("validation"), str) else ""
    )
    return PartitionPlan(
        parts=_read_parts(top, section, workers),
        seed=read_field(section if section.contains("seed") else top, "seed", PartitionPlanIn),
        validation=_read_share(section),
        validation_from=source,
        stratify=section.text("stratify"),
        columns=_read_columns(section),
        files=section.text("files"),
        format=section.text("format"),
    )


def _read_parts(top: YamlSection, section: YamlSection, workers: int) -> int:
    """The partitions are the steps of an epoch."""
    per_epoch = read_positive_field(top, "steps_per_epoch", StudyIn)
    parts: int = read_field(section, "parts", PartitionPlanIn) if section.contains("parts") else 0
    if per_epoch and parts and per_epoch != parts:
        raise top.error(
            "steps_per_epoch",
            f"{per_epoch} is not the number of partitions ({parts}), and each step visits one of them",
            "keep one of the two keys",
        )
    return parts or per_epoch or workers


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
    columns: list[str] = []
    for index, column in section.items("columns"):
        if not isinstance(column, str) or not column:
            raise section.error(
                f"columns.{index}",
                f"{format_given(column)} is not the name of a column",
                f'write it in quotes: "{column}"',
            )
        columns.append(column)
    return tuple(columns)


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
