"""The resources of this machine: CPUs, memory and GPUs, detected or declared."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hopyard.domain.cluster import Node
from hopyard.domain.ids import DEFAULT_POOL, NodeId, PoolName, slug
from hopyard.domain.resources import Gpu

RESERVED_MEMORY_BYTES = 512 * 1024**2  # reserved for the system and for Hopyard
RESERVED_MEMORY_SHARE = 0.05  # … but at most this share of a small machine


@dataclass(frozen=True, slots=True)
class LocalNodeSettings:
    """The user's declaration of this machine, or of a part of it; values that are None are detected.

    cpu_milli: thousandths of a core. memory_bytes: for all runs together. gpus: declared GPUs, with indices
    from 0 in this order; an empty tuple hides existing ones. extras: other countable resources by name.
    processes: the maximum of one replica, threads included; 0 sets no limit.
    """

    id: str | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    pool: str = DEFAULT_POOL
    labels: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, int] = field(default_factory=dict)
    processes: int = 0


def find_node(settings: LocalNodeSettings | None = None, *, engine: str = "local") -> tuple[Node, bool]:
    """Returns this machine as a node, and whether the driver reported its GPUs (declared ones are not
    verified)."""
    settings_or_default = settings or LocalNodeSettings()
    gpus = find_gpus() if settings_or_default.gpus is None else settings_or_default.gpus
    node = Node(
        id=NodeId(settings_or_default.id or slug(platform.node(), fallback="local")),
        engine=engine,
        cpu_milli=find_cpu_milli()
        if settings_or_default.cpu_milli is None
        else settings_or_default.cpu_milli,
        memory_bytes=find_memory_bytes()
        if settings_or_default.memory_bytes is None
        else settings_or_default.memory_bytes,
        gpus=gpus,
        pool=PoolName(settings_or_default.pool),
        labels=dict(settings_or_default.labels),
        extras=dict(settings_or_default.extras),
    )
    return node, settings_or_default.gpus is None and bool(gpus)


def find_nodes(declared: Sequence[LocalNodeSettings], *, engine: str = "local") -> tuple[list[Node], bool]:
    """Returns the nodes of this machine, and whether the driver reported their GPUs.

    Several nodes are parts of the machine. Amounts that are not declared are equal shares of it. GPUs are
    declared, and are numbered through all nodes.
    """
    if len(declared) < 2:
        node, is_reported = find_node(declared[0] if declared else None, engine=engine)
        return [node], is_reported
    nodes: list[Node] = []
    index = 0
    for part in declared:
        gpus = tuple(replace(gpu, index=number) for number, gpu in enumerate(part.gpus or (), index))
        index += len(gpus)
        cpu_milli, memory_bytes = part.cpu_milli, part.memory_bytes
        amounts = replace(
            part,
            gpus=gpus,
            cpu_milli=max(1, find_cpu_milli() // len(declared)) if cpu_milli is None else cpu_milli,
            memory_bytes=find_memory_bytes() // len(declared) if memory_bytes is None else memory_bytes,
        )
        nodes.append(find_node(amounts, engine=engine)[0])
    return nodes, False


def find_cpu_milli() -> int:
    """Returns the thousandths of a core that this process may use: its cores, or less if a cgroup has a
    quota."""
    milli = len(os.sched_getaffinity(0)) * 1000
    for folder in cgroup_chain("cpu"):
        quota = _cpu_quota(folder)
        if quota is not None:
            milli = min(milli, quota)
    return max(milli, 1)


def find_memory_bytes() -> int:
    """Returns the physical memory or the smallest cgroup limit above this process, minus a reserve."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in cgroup_chain("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read_int(folder / name)
            if limit is not None:
                total = min(total, limit)
    return total - min(RESERVED_MEMORY_BYTES, int(total * RESERVED_MEMORY_SHARE))


def find_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs that NVIDIA's library reports, with the indices of CUDA_DEVICE_ORDER=PCI_BUS_ID; none
    without a driver.

    If CUDA_VISIBLE_DEVICES of this process contains numbers, other GPUs are excluded.
    """
    try:
        import pynvml  # late: loading the driver's library takes time and most machines have none

        pynvml.nvmlInit()
    except Exception:
        # no package, no library, no driver, no permission: in each case no GPUs are available
        return ()
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(device)
            model = name.decode() if isinstance(name, bytes) else str(name)
            gpus.append(
                Gpu(
                    index, re.sub(r"^NVIDIA\s+", "", model), int(pynvml.nvmlDeviceGetMemoryInfo(device).total)
                )
            )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and re.fullmatch(r"[\d,\s]*", visible):
        allowed = {int(part) for part in visible.split(",") if part.strip()}
        gpus = [gpu for gpu in gpus if gpu.index in allowed]
    return tuple(gpus)


def cgroup_chain(controller: str) -> list[Path]:
    """Returns the visible cgroup folders of this process for a controller (version 1 or 2), the innermost
    first."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    paths = {
        name: path for _, names, path in (line.split(":", 2) for line in groups) for name in names.split(",")
    }
    for kind, option in (("cgroup", controller), ("cgroup2", None)):
        path = paths.get(controller if kind == "cgroup" else "")
        if path is None:
            continue
        for line in mounts:
            mount_text, _, file_system_text = line.partition(" - ")
            fields, options = mount_text.split(), file_system_text.split()
            if options[0] != kind or (option is not None and option not in options[2].split(",")):
                continue
            root, mount = fields[3], Path(fields[4])
            if option is None and controller not in _read_words(mount / "cgroup.controllers"):
                continue
            inner = os.path.relpath(path, root)
            folder = mount if inner.startswith("..") else mount / inner
            return (
                [folder, *(p for p in folder.parents if p == mount or mount in p.parents)]
                if folder != mount
                else [mount]
            )
    return []


def _read_words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _read_int(file: Path) -> int | None:
    """Returns a limit, or None if there is none."""
    fields = _read_words(file)
    return int(fields[0]) if fields and fields[0].isdecimal() else None


def _cpu_quota(folder: Path) -> int | None:
    fields = _read_words(folder / "cpu.max")
    if len(fields) == 2 and fields[0].isdecimal():
        return int(fields[0]) * 1000 // int(fields[1])
    quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
    return quota * 1000 // period if quota and period else None
