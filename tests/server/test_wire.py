"""What goes over the wire has the fields of the domain's records, and decodes into them."""

from __future__ import annotations

import msgspec
import pytest

from hopyard.domain.attempt import ReplicaStatus
from hopyard.domain.resources import Resources
from hopyard.domain.run import DatasetRef, Environment, GitState, ResumeFrom, RoleSpec, Run, RunSpec
from hopyard.server.wire import (
    DatasetRefIn,
    EnvironmentIn,
    GitIn,
    ReplicaStatusIn,
    ResourcesIn,
    ResumeIn,
    RoleIn,
    RunOut,
    SpecIn,
    to_spec,
)

PAIRS = [
    (SpecIn, RunSpec),
    (RoleIn, RoleSpec),
    (ResourcesIn, Resources),
    (DatasetRefIn, DatasetRef),
    (EnvironmentIn, Environment),
    (GitIn, GitState),
    (ResumeIn, ResumeFrom),
    (ReplicaStatusIn, ReplicaStatus),
]


@pytest.mark.parametrize(("wire", "record"), PAIRS)
def test_fields_are_those_of_the_record(wire: type[msgspec.Struct], record: type) -> None:
    there = {field.name: field.required for field in msgspec.structs.fields(wire)}
    assert there == {field.name: field.required for field in msgspec.inspect.type_info(record).fields}  # type: ignore[union-attr]


def test_a_run_goes_out_with_all_its_fields() -> None:
    assert {*Run.__dataclass_fields__} <= {*RunOut.__struct_fields__}


def test_a_spec_survives_the_way_there_and_back() -> None:
    spec = RunSpec(
        project="p",
        roles=(RoleSpec(("python", "a.py"), "chief", 2, Resources(500, 2**30, 1, "A100")), RoleSpec(("b",))),
        datasets=(DatasetRef("mnist", 3),),
        params={"a": 1, "b": 0.5, "c": None, "d": True, "e": "x"},
        git=GitState("abc", dirty=True),
        environment=Environment("/usr/bin/python", python="3.11"),
        time_limit_s=3.5,
    )
    assert to_spec(msgspec.json.decode(msgspec.json.encode(spec), type=SpecIn)) == spec
