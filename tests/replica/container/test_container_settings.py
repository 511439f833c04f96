"""The settings of containers: limits and isolation are those of the replica, whatever the run requests."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.replica import NodeContext, ReplicaSpec
from hopyard.domain.resources import Resources
from hopyard.domain.run_network import RunNetwork
from hopyard.replica.container.container_settings import (
    ContainerMounts,
    check_dataset_path,
    check_gpus,
    container_settings,
)
from hopyard.replica.container.gang_network import GangNetwork
from hopyard.replica.errors import PrepareFailed


def spec(home: Path, resources: Resources, **node: Any) -> ReplicaSpec:
    launch = ReplicaLaunch(
        attempt=AttemptId("r1.1"),
        run=RunId("r1"),
        run_name="a/b/1",
        rank=1,
        role="worker",
        role_rank=1,
        world_size=2,
        command=("python",),
        resources=resources,
        server_url="",
        token="",
        image="python:3.12",
    )
    hosts = {"worker-0": "worker-0", "worker-1": "worker-1"}
    return ReplicaSpec(launch, NodeContext("n", str(home), "", 1234, hosts=hosts, **node))


def settings(of: ReplicaSpec, *, env: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "cwd": Path("/work"),
        "stdout": Path("/out"),
        "stderr": Path("/err"),
        "umask": 0o22,
        "mounts": ContainerMounts({Path("/data"): Path("/cache/data")}, {Path("/run"): Path("/gang")}),
        "network": None,
        "user": (1000, 100),
        "is_rootless_podman": False,
        "memory_total": 64,
    }
    return container_settings(of, ["python3", "-c", "1"], env or {}, **{**given, **changes})


def test_limits_and_isolation(tmp_path: Path) -> None:
    resources = Resources(cpu_milli=1500, cpu_limited=True, memory_bytes=1 << 30)
    body = settings(
        spec(tmp_path, resources, processes=100), env={"HostConfig": '"Privileged": true', "A": "x\ny"}
    )
    host = body["HostConfig"]
    assert (host["CapDrop"], host["Init"]) == (["ALL"], True)
    # with SELinux, the mounts below could not be read without the second one
    assert host["SecurityOpt"] == ["no-new-privileges", "label=disable"]
    assert (host["Memory"], host["MemorySwap"], host["ShmSize"]) == (1 << 30, 1 << 30, 1 << 30)
    assert (host["CpuQuota"], host["CpuPeriod"], host["PidsLimit"]) == (150_000, 100_000, 100)
    assert not {"Privileged", "Devices", "DeviceRequests", "Binds", "NetworkMode"} & host.keys()
    assert (body["User"], body["Cmd"][-3:]) == ("1000:100", ["python3", "-c", "1"])
    assert body["Env"] == ['HostConfig="Privileged": true', "A=x\ny"]
    assert [(mount["Target"], mount["ReadOnly"]) for mount in host["Mounts"]] == [
        ("/data", True),
        ("/run", False),
    ]


def test_gpus_are_requested_only_by_runs_that_have_them(tmp_path: Path) -> None:
    with_gpus = settings(spec(tmp_path, Resources(gpus=2), gpus=(1, 3), nvml=True))["HostConfig"]
    assert [request["DeviceIDs"] for request in with_gpus["DeviceRequests"]] == [["1", "3"]]
    declared = settings(spec(tmp_path, Resources(gpus=1), gpus=(0,)))["HostConfig"]
    assert "DeviceRequests" not in declared
    check_gpus(spec(tmp_path, Resources(), nvml=True).node, "Podman")
    node = spec(tmp_path, Resources(gpus=1), gpus=(0,), nvml=True).node
    check_gpus(node, "Docker")
    with pytest.raises(PrepareFailed, match="need Docker"):  # it would ignore the request
        check_gpus(node, "Podman")


def test_replicas_of_gang_have_names_and_addresses_by_rank(tmp_path: Path) -> None:
    network = GangNetwork("hopyard-r1.1", IPv4Network("10.70.0.0/24"))
    body = settings(spec(tmp_path, Resources()), network=network)
    assert body["HostConfig"]["ExtraHosts"] == ["worker-0:10.70.0.10", "worker-1:10.70.0.11"]
    endpoint = body["NetworkingConfig"]["EndpointsConfig"]["hopyard-r1.1"]
    assert endpoint["IPAMConfig"] == {"IPv4Address": "10.70.0.11"}
    assert body["Hostname"] == "worker-1"


def test_ports_are_published_on_the_node_alone(tmp_path: Path) -> None:
    of = spec(tmp_path, Resources())
    body = settings(replace(of, node=replace(of.node, ports={8888: 40001})))
    assert body["HostConfig"]["PortBindings"] == {"40001/tcp": [{"HostIp": "127.0.0.1", "HostPort": "40001"}]}


@pytest.mark.parametrize(
    "path", ["/", "/proc/1", "/sys", "/dev/shm", "/home/me/hop", "/home/me/hop/attempts", "/home"]
)
def test_dataset_cannot_hide_the_run_or_the_kernel(path: str) -> None:
    with pytest.raises(PrepareFailed, match="cannot be placed"):
        check_dataset_path("mnist", path, Path("/home/me/hop"))
    assert check_dataset_path("mnist", "/data/../data/mnist", Path("/home/me/hop")) == Path("/data/mnist")


def test_replica_without_network(tmp_path: Path) -> None:
    of = spec(tmp_path, Resources())
    closed = replace(of, launch=replace(of.launch, network=RunNetwork.NONE))
    assert settings(closed)["HostConfig"]["NetworkMode"] == "none"
    network = GangNetwork("hopyard-r1.1", IPv4Network("10.70.0.0/24"))
    host = settings(closed, network=network)["HostConfig"]
    assert (host["NetworkMode"], "Sysctls" in host) == (network.name, True)
    assert "Sysctls" not in settings(of, network=network)["HostConfig"]
