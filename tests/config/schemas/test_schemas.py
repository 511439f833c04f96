"""The shapes have the fields of the domain's records, and decode into them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from hopyard.config.schemas.run_rules import check_spec
from hopyard.config.schemas.runs import (
    DatasetRefIn,
    EnvironmentIn,
    GitIn,
    ParamFormatIn,
    ResourcesIn,
    ResumeIn,
    RoleIn,
    ScriptOptionIn,
    SpecIn,
    TopologyIn,
    WhereIn,
    to_run_spec,
)
from hopyard.config.schemas.studies import MopIn, PartitionPlanIn, SearcherIn, StudyIn, to_study_json
from hopyard.config.schemas.study_json import study_from_json, study_to_journal, study_to_json, without_values
from hopyard.domain.gang import Closeness, NodeSelector, Topology
from hopyard.domain.ids import PoolName, QueueName
from hopyard.domain.launcher import Launcher
from hopyard.domain.param_format import ParamFormat, ScriptOption
from hopyard.domain.resources import Resources
from hopyard.domain.restart_policy import RestartMode, RestartPolicy
from hopyard.domain.run import DatasetRef, Environment, GitState, ResumeFrom, RoleSpec, RunSpec
from hopyard.domain.run_network import RunNetwork
from hopyard.domain.run_values import limit_packages
from hopyard.domain.space import Choice, Condition, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal, MopSpec, Parallel, PartitionPlan, SearcherSpec, StudySpec
from hopyard.domain.tag_limits import is_tag
from hopyard.errors import SpecError

PAIRS = [
    (SpecIn, RunSpec),
    (RoleIn, RoleSpec),
    (ResourcesIn, Resources),
    (WhereIn, NodeSelector),
    (TopologyIn, Topology),
    (DatasetRefIn, DatasetRef),
    (EnvironmentIn, Environment),
    (GitIn, GitState),
    (ResumeIn, ResumeFrom),
    (ParamFormatIn, ParamFormat),
    (ScriptOptionIn, ScriptOption),
    (MopIn, MopSpec),
    (PartitionPlanIn, PartitionPlan),
    (SearcherIn, SearcherSpec),
]


@pytest.mark.parametrize(("wire", "record"), PAIRS)
def test_schema_fields_equal_record_fields(wire: type[msgspec.Struct], record: type) -> None:
    schema_fields = {field.name: field.required for field in msgspec.structs.fields(wire)}
    assert schema_fields == {field.name: field.required for field in msgspec.inspect.type_info(record).fields}  # type: ignore[union-attr]


def test_spec_round_trips() -> None:
    spec = RunSpec(
        project="p",
        roles=(
            RoleSpec(
                ("python", "a.py"),
                "chief",
                2,
                Resources(500, 2**30, 1, ("A100", "H100"), extras=(("fpga", 1),)),
                min_replicas=1,
            ),
            RoleSpec(
                ("b",),
                resources=Resources(gpu_milli=500),
                where=NodeSelector((PoolName("a"),), (("rack", "1"),)),
            ),
            RoleSpec(
                ("c",),
                "c",
                4,
                Resources(gpu_memory_bytes=2**30),
                topology=Topology("node", Closeness.SAME, 2),
            ),
        ),
        queue=QueueName("q"),
        priority=0,
        preemptible=False,
        topology=Topology("rack", Closeness.BALANCED),
        datasets=(DatasetRef("mnist", 3),),
        params={"a": 1, "b": 0.5, "c": None, "d": True, "e": "x"},
        git=GitState("abc", dirty=True),
        environment=Environment("/usr/bin/python", python="3.11"),
        time_limit_s=3.5,
    )
    assert to_run_spec(msgspec.json.decode(msgspec.json.encode(spec), type=SpecIn)) == spec


def test_thousands_of_packages_fit_into_a_spec_beside_other_values() -> None:
    packages = {f"a-package-with-a-rather-long-name-{number}": "2026.10.1.post1" for number in range(3001)}
    assert limit_packages(packages) == packages
    spec = RunSpec("p", (RoleSpec(("python", "a.py")),), environment=Environment(packages=packages))
    check_spec(replace(spec, params={f"p{number}": "v" * 150 for number in range(1000)}))
    many = {f"{number}-{'n' * 100}": "1" for number in range(3001)}
    with pytest.raises(SpecError, match=r"environment\.packages: at most 256 KiB"):
        check_spec(replace(spec, environment=Environment(packages=many)))
    kept = limit_packages(many)
    check_spec(replace(spec, environment=Environment(packages=kept)))
    assert 2000 < len(kept) < 3001


def test_links_of_the_code_count_to_the_size_of_a_spec() -> None:
    links = {f"link{number}": "/" + "t" * 4000 for number in range(100)}
    with pytest.raises(SpecError, match=r"environment\.links: .* at most 256 KiB"):
        check_spec(RunSpec("p", (RoleSpec(("python", "a.py")),), environment=Environment(links=links)))


def test_roles_with_mpi_take_no_restart_policy() -> None:
    role = RoleSpec(("python", "a.py"), launcher=Launcher.MPI)
    check_spec(RunSpec("p", (role,)))
    restarting = replace(role, restart=RestartPolicy(RestartMode.ON_FAILURE))
    check_spec(RunSpec("p", (replace(restarting, launcher=Launcher.TORCHRUN),)))
    with pytest.raises(SpecError, match=r"roles\.0\.restart: the launcher `mpi`"):
        check_spec(RunSpec("p", (restarting,)))


def test_only_containers_without_ports_can_be_without_a_network() -> None:
    closed = RunSpec("p", (RoleSpec(("python", "a.py"), image="python:3"),), network=RunNetwork.NONE)
    check_spec(closed)
    with pytest.raises(SpecError, match="network: ports cannot be reached"):
        check_spec(replace(closed, ports={"web": 80}))
    with pytest.raises(SpecError, match="network: only containers"):
        check_spec(replace(closed, roles=(RoleSpec(("python", "a.py")),)))


def test_tag_that_no_database_can_index_is_refused() -> None:
    spec = RunSpec("p", (RoleSpec(("python", "a.py")),), tags={"team": "x" * 1024})
    check_spec(spec)
    with pytest.raises(SpecError, match=r"tags\.team: at most 2048 bytes"):
        check_spec(replace(spec, tags={"team": "字" * 1024}))
    assert not is_tag("team", "字" * 1024) and is_tag("team", "字" * 600)


def test_journal_of_a_study_has_no_values_of_variables() -> None:
    trial = {"params": {"a": 1}, "env": {"KEY": "private"}}
    spec = StudySpec(
        "s", Space(()), "loss", Goal.MIN, Parallel.TRIALS, SearcherSpec("random"), 9, trial=trial
    )
    value = study_to_journal(spec)
    assert value["trial"] == {"params": {"a": 1}, "env": {"KEY": "***"}}
    assert without_values(study_to_json(spec)) == value
    assert spec.trial is not None and spec.trial["env"] == {"KEY": "private"}
    assert study_from_json(value).metric == "loss"


def test_study_round_trips() -> None:
    space = Space((
        Parameter("lr", Uniform(1e-4, 1.0, log=True)),
        Parameter("kind", Choice(("a", 1, 2.5, True, None))),
        Parameter("depth", Integer(1, 9, step=2, points=3), (Condition("kind", ("a", 1)),)),
        Parameter("fixed", Constant(3)),
    ))  # fmt: skip
    mop = MopSpec("m.py:M", 4, "mnist", PartitionPlan(4, validation=0.2, columns=("x", "y")))
    spec = StudySpec(
        "s", space, "acc", Goal.MAX, Parallel.MOP, SearcherSpec("asha", {"eta": 4}), 9, 3, 27, mop=mop
    )
    taken = to_study_json(msgspec.json.decode(msgspec.json.encode(study_to_json(spec)), type=StudyIn))
    assert study_from_json(taken) == spec
    assert study_to_json(study_from_json(taken)) == study_to_json(spec)
