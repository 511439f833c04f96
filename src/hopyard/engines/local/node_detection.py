"""What this machine has to give: CPUs, memory and GPUs, found or declared."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.domain.cluster import Node
from hopyard.domain.ids import DEFAULT_POOL, NodeId, PoolName, slug
from hopyard.domain.resources import Gpu

RESERVED_MEMORY_BYTES = 512 * 1024**2  # left to the system and to ourselves
RESERVED_MEMORY_SHARE = 0.05  # … but never more than this share of a small machine


@dataclass(frozen=True, slots=True)
class LocalNodeSettings:
    """What the user declared of this machine; whatever is None is found out.

    cpu_milli: thousandths of a core. memory_bytes: what runs may have in all. gpus: declared GPUs; an empty
    tuple hides those there are. Indices count from 0 in the order given. extras: other countable things by
    name. processes: that one replica may have at once, threads included; 0 sets no limit.
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
    """This machine as a node, and whether its GPUs are ones that the driver told of (declared ones are taken
    on trust)."""
    given = settings or LocalNodeSettings()
    gpus = find_gpus() if given.gpus is None else given.gpus
    node = Node(
        id=NodeId(given.id or slug(platform.node(), fallback="local")),
        engine=engine,
        cpu_milli=find_cpu_milli() if given.cpu_milli is None else given.cpu_milli,
        memory_bytes=find_memory_bytes() if given.memory_bytes is None else given.memory_bytes,
        gpus=gpus,
        pool=PoolName(given.pool),
        labels=dict(given.labels),
        extras=dict(given.extras),
    )
    return node, given.gpus is None and bool(gpus)


def find_cpu_milli() -> int:
    """Thousandths of a core that this process may use: its cores, or less where a cgroup's quota says so."""
    milli = len(os.sched_getaffinity(0)) * 1000
    for folder in cgroup_chain("cpu"):
        quota = _cpu_quota(folder)
        if quota is not None:
            milli = min(milli, quota)
    return max(milli, 1)


def find_memory_bytes() -> int:
    """Physical memory or the smallest cgroup limit above this process, less a reserve."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in cgroup_chain("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read_int(folder / name)
            if limit is not None:
                total = min(total, limit)
    return total - min(RESERVED_MEMORY_BYTES, int(total * RESERVED_MEMORY_SHARE))


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that NVIDIA's library tells of, under the indices of CUDA_DEVICE_ORDER=PCI_BUS_ID; none
    without a driver.

    CUDA_VISIBLE_DEVICES of this process, when it holds numbers, keeps the others out.
    """
    try:
        import pynvml  # late: loading the driver's library takes time and most machines have none

        pynvml.nvmlInit()
    except Exception:
        # no package, no library, no driver, no permission: all mean that there are no GPUs to give
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(device)
            model = name.decode() if isinstance(name, bytes) else str(name)
            found.append(
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
        found = [gpu for gpu in found if gpu.index in allowed]
    return tuple(found)


def cgroup_chain(controller: str) -> list[Path]:
    """The cgroup folders of this process for a controller (version 1 or 2), the innermost first, as far as
    they are visible."""
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
            left, _, right = line.partition(" - ")
            fields, options = left.split(), right.split()
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
    """A limit, None where there is none."""
    words = _read_words(file)
    return int(words[0]) if words and words[0].isdecimal() else None


def _cpu_quota(folder: Path) -> int | None:
    words = _read_words(folder / "cpu.max")
    if len(words) == 2 and words[0].isdecimal():
        return int(words[0]) * 1000 // int(words[1])
    quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
    return quota * 1000 // period if quota and period else None
