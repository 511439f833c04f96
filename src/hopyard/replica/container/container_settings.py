"""The settings of the container of one replica, as the interface of the engine takes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopyard.container_engine.container_labels import ATTEMPT_LABEL, HOME_LABEL, RANK_LABEL, home_tag
from hopyard.domain.replica import NodeContext, ReplicaSpec
from hopyard.domain.run_network import RunNetwork
from hopyard.replica.container.gang_network import GangNetwork
from hopyard.replica.errors import PrepareFailed

# opens the output as a process of the node does; `exec` keeps the signals of the container for the command
_START_SCRIPT = 'umask "$1"; out=$2 err=$3; shift 3; exec "$@" >>"$out" 2>>"$err" </dev/null'
_SHELL = "/bin/sh"
# Without the second one, containers cannot use files of a node with SELinux. New labels for these files are
# no alternative: they change users' datasets, take long, and fail on file systems without labels.
SECURITY_OPTIONS = ("no-new-privileges", "label=disable")
_RESERVED_FOLDERS = ("/proc", "/sys", "/dev")
_CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class ContainerMounts:
    """The folders of the node that a container sees, all by paths that no process of a run can change.

    read_only, writable: path in the container → path on the node.
    """

    read_only: Mapping[Path, Path] = field(default_factory=dict)
    writable: Mapping[Path, Path] = field(default_factory=dict)

    def to_json(self) -> list[dict[str, Any]]:
        mounts = [*((*pair, True) for pair in self.read_only.items())]
        mounts += [(*pair, False) for pair in self.writable.items()]
        # the parents first, so that no mount hides another one
        return [
            {
                "Type": "bind",
                "Source": str(source),
                "Target": str(target),
                "ReadOnly": read_only,
                "BindOptions": {"Propagation": "rprivate"},
            }
            for target, source, read_only in sorted(mounts, key=lambda mount: len(mount[0].parts))
        ]


def check_dataset_path(name: str, path: str, home: Path) -> Path:
    """Returns where a dataset is mounted in the container. Raises PrepareFailed for a path that would hide
    the run, or a folder of the kernel."""
    target = Path(os.path.normpath(path))
    if target.is_relative_to(home) or home.is_relative_to(target):
        raise PrepareFailed(
            f"dataset {name} cannot be placed at {path}: it would hide the folders of the run below {home}"
        )
    if any(target.is_relative_to(folder) for folder in _RESERVED_FOLDERS):
        raise PrepareFailed(f"dataset {name} cannot be placed at {path}: the folder belongs to the kernel")
    return target


def check_gpus(node: NodeContext, engine: str) -> None:
    """Raises PrepareFailed if the engine gives containers no GPUs. Podman ignores the request for them, and
    the script would run on the CPU."""
    if node.gpus and node.nvml and engine == "Podman":
        raise PrepareFailed(
            "GPUs in containers need Docker with the NVIDIA Container Toolkit; the container engine of "
            f"node {node.id} is Podman"
        )


def container_settings(
    spec: ReplicaSpec,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: Path,
    stdout: Path,
    stderr: Path,
    umask: int,
    mounts: ContainerMounts,
    network: GangNetwork | None,
    user: tuple[int, int],
    is_rootless_podman: bool,
    memory_total: int,
) -> dict[str, Any]:
    """Returns the body of the request that creates the container.

    The process has the ids of this one, no capabilities, and cannot gain privileges. Nothing in it comes from
    the run but the image, the command, the variables, the ports and the amounts of resources. network: of the
    gang; None gives the default network, or none. memory_total: of the node, for /dev/shm.
    """
    launch, node = spec.launch, spec.node
    resources, ports = launch.resources, [f"{port}/tcp" for port in node.ports.values()]
    host: dict[str, Any] = {
        "Mounts": mounts.to_json(),
        "CapDrop": ["ALL"],
        "SecurityOpt": list(SECURITY_OPTIONS),
        "Init": True,
        "PidMode": "",
        "IpcMode": "private",
        "ShmSize": resources.memory_bytes or memory_total // 2,
        "PidsLimit": node.processes or -1,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none", "Config": {}},
        "PortBindings": {
            port: [{"HostIp": "127.0.0.1", "HostPort": port.partition("/")[0]}] for port in ports
        },
        "OomScoreAdj": 300,
    }
    if resources.memory_bytes:
        host |= {"Memory": resources.memory_bytes, "MemorySwap": resources.memory_bytes}
    if resources.cpu_limited:
        host |= {
            "CpuPeriod": _CPU_PERIOD_US,
            "CpuQuota": max(1000, resources.cpu_milli * _CPU_PERIOD_US // 1000),
        }
    shares = resources.cpu_milli if resources.cpu_limited else max(resources.cpu_milli, 1000)
    host["CpuShares"] = min(max(shares * 1024 // 1000, 2), 262_144)
    if node.cpus and not resources.cpu_limited:
        host["CpusetCpus"] = ",".join(map(str, node.cpus))
    if node.gpus and node.nvml:
        host["DeviceRequests"] = [
            {"Driver": "nvidia", "DeviceIDs": [str(gpu) for gpu in node.gpus], "Capabilities": [["gpu"]]}
        ]
    if is_rootless_podman:
        host["UsernsMode"] = "keep-id"
    body: dict[str, Any] = {
        "Image": launch.image,
        "Entrypoint": [_SHELL, "-c", _START_SCRIPT, "hopyard"],
        "Cmd": [f"{umask:04o}", str(stdout), str(stderr), *argv],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "WorkingDir": str(cwd),
        "User": "{}:{}".format(*user),
        "Hostname": launch.host_name,
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "ExposedPorts": {port: {} for port in ports},
        "Labels": {
            HOME_LABEL: home_tag(node.home),
            ATTEMPT_LABEL: launch.attempt,
            RANK_LABEL: str(launch.rank),
        },
        "HostConfig": host,
    }
    if network is None and launch.network is RunNetwork.NONE:
        host["NetworkMode"] = "none"
    if network is not None:
        host["NetworkMode"] = network.name
        host["ExtraHosts"] = [f"{name}:{address}" for name, address in network.hosts(node.hosts).items()]
        body["NetworkingConfig"] = {
            "EndpointsConfig": {
                network.name: {
                    "IPAMConfig": {"IPv4Address": network.address(launch.rank)},
                    "Aliases": [launch.host_name],
                }
            }
        }
        if launch.network is RunNetwork.NONE:  # the node has a link-local address in the network
            host["Sysctls"] = {"net.ipv6.conf.all.disable_ipv6": "1"}
    return body
