"""The environment variables of a user's process: its place in the gang, its data, its resources."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from hopyard.domain.dataset_paths import dataset_variable, fill_dataset_paths
from hopyard.domain.evaluation import EVALUATION_VARIABLE
from hopyard.domain.launcher import INDEPENDENT_RANKS_VARIABLE
from hopyard.domain.replica import STUDY_FILE, ReplicaSpec
from hopyard.domain.resources import WHOLE_GPU
from hopyard.domain.run_environment import (
    HOOKS_VARIABLE,
    container_variables,
    run_variables,
    visible_variables,
)
from hopyard.domain.run_port import (
    FIRST_PORT_VARIABLE,
    SOCKET_FOLDER,
    VISDOM_VARIABLE,
    port_variables,
    socket_variables,
)
from hopyard.private_files import make_folder
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.replica_dir import ReplicaDir

# the first folder of PYTHONPATH, as seen from that of the SDK; see `hopyard.sdk.startup`
STARTUP_FOLDER = "hopyard/sdk/startup/path"
# part of a GPU share for the framework's allocations; the driver needs the rest for the process
_TORCH_MEMORY_SHARE = 0.9


def process_env(
    spec: ReplicaSpec,
    folder: ReplicaDir,
    *,
    url: str,
    interpreter: str,
    datasets: Mapping[str, Path],
    restored: bool,
    virtual_env: Path | None = None,
    visdom: str = "",
) -> dict[str, str]:
    """Returns the whole environment of the user's process. The user's own `--env` and secrets override
    inherited and default variables, but not those that describe the run and its place."""
    launch, node = spec.launch, spec.node
    gang = GangFolder(Path(node.gang_folder or folder.root), spec)
    work = gang.path_in_place(folder.work)
    env = (container_variables if launch.image else run_variables)(os.environ, node.pass_environment)
    env |= {"PYTHONUNBUFFERED": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    # more threads than cores slow each other down; without a limit the library's default is right
    if launch.resources.cpu_limited:
        env["OMP_NUM_THREADS"] = str(max(1, launch.resources.cpu_milli // 1000))
    env |= _gpu_share(spec)
    ports = port_variables(launch.ports, node.ports)
    env |= ports
    env |= {name: fill_dataset_paths(text, datasets) for name, text in launch.env.items()}
    env |= launch.secrets
    if not launch.image:
        bin_folder = str(Path(interpreter).parent)
        env["PATH"] = f"{bin_folder}{os.pathsep}{env.get('PATH', os.defpath)}"
    if virtual_env is not None:
        env["VIRTUAL_ENV"] = str(virtual_env)
    sdk = make_sdk_folder(Path(node.home))
    sources = _source_folders(spec, folder.work, work) if virtual_env is not None else []
    paths = [str(sdk / STARTUP_FOLDER), str(sdk), *sources, *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(paths)
    env[HOOKS_VARIABLE] = env.get(HOOKS_VARIABLE, "1")
    env |= {
        "HOPYARD_RUN": launch.run_name,
        "HOPYARD_RUN_ID": launch.run,
        "HOPYARD_ATTEMPT": launch.attempt,
        "HOPYARD_REPLICA_DIR": str(folder.root),
        "HOPYARD_RUN_DIR": str(gang.path_in_place(gang.run)),
        "HOPYARD_WORKSPACE": str(gang.path_in_place(gang.run)),
        "HOPYARD_GANG_DIR": node.gang_folder or str(folder.root),
        "HOPYARD_PARAMS": json.dumps(dict(launch.params)),
        "HOPYARD_TAGS": json.dumps(dict(launch.tags)),
        "HOPYARD_DATASETS": json.dumps({name: str(path) for name, path in datasets.items()}),
        **{dataset_variable(name): str(path) for name, path in sorted(datasets.items(), reverse=True)},
        "HOPYARD_URL": url,
        **_visible_devices(spec),
        "HOPYARD_MAX_MEDIA": str(node.max_media_bytes),
        "HOPYARD_EXTRAS": json.dumps(dict(launch.resources.extras)),
    }
    env |= {name: text for name, text in ports.items() if name != FIRST_PORT_VARIABLE}
    if launch.ports:
        make_folder(folder.root / SOCKET_FOLDER)
        env |= socket_variables(launch.ports, str(folder.root))
    if launch.in_gang:
        env |= _rank_variables(spec)
    if launch.image and os.geteuid() != 0:  # the image has no such user
        env = {"HOME": "/tmp", "USER": "hopyard", "LOGNAME": "hopyard", **env}
    if node.gpus and node.gpu_milli < WHOLE_GPU:
        env["HOPYARD_GPU_SHARE"] = f"{node.gpu_milli / WHOLE_GPU:g}"
    if node.gpu_memory_bytes:
        env["HOPYARD_GPU_MEMORY"] = str(node.gpu_memory_bytes)
    if launch.environment.folder:
        env["HOPYARD_CODE_ORIGIN"] = launch.environment.folder
        env["HOPYARD_CODE_COPY"] = str(work)
    if launch.study is not None:
        env["HOPYARD_STUDY"] = str(folder.root / STUDY_FILE)
    if restored and launch.restore is not None:
        env["HOPYARD_RESTORE_DIR"] = str(folder.restore)
        env["HOPYARD_RESTORE_STEP"] = str(launch.restore.step)
    if visdom:
        env[VISDOM_VARIABLE] = visdom
    if launch.evaluation is not None:
        env[EVALUATION_VARIABLE] = json.dumps(asdict(launch.evaluation))
    if launch.foreign:
        env["HOPYARD_RESTORE_FOREIGN"] = "1"
    return env


def record_machine_env(folder: ReplicaDir, passed: Sequence[str]) -> None:
    """Records the machine's variables that the run's processes get. On a full disk they are not recorded.
    passed: as in `NodeContext.pass_environment`."""
    names = tuple(passed)
    with suppress(OSError):
        folder.append_json(
            "events", kind="environment", values=visible_variables(run_variables(os.environ, names), names)
        )


def _rank_variables(spec: ReplicaSpec) -> dict[str, str]:
    launch, node = spec.launch, spec.node
    variables = {
        "RANK": str(launch.rank),
        "LOCAL_RANK": str(node.local_rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_WORLD_SIZE": str(node.local_world_size),
        "NODE_RANK": str(node.node_rank),
        "GROUP_RANK": str(node.node_rank),
        "MASTER_ADDR": node.master_addr,
        "MASTER_PORT": str(node.master_port),
        "ROLE_NAME": launch.role,
        "ROLE_RANK": str(launch.role_rank),
        "HOPYARD_REPLICA": launch.host_name,
        "HOPYARD_HOSTS": json.dumps(dict(node.hosts)),
        "HOPYARD_PEER_PORTS": json.dumps(dict(node.peer_ports)),
    }
    if launch.independent_ranks and not launch.launcher.has_processes:  # which has ranks of its own
        variables[INDEPENDENT_RANKS_VARIABLE] = ",".join(map(str, launch.independent_ranks))
    return variables


def _source_folders(spec: ReplicaSpec, folder: Path, work: Path) -> list[str]:
    """Returns the folders of the code from which projects are imported that the environment does not
    contain. folder, work: the working folder as this process and as the user's process see it."""
    folders: list[str] = []
    for source in spec.launch.environment.editable.values():
        place = work / source
        if place.is_relative_to(work):
            folders += [str(place / "src")] if (folder / source / "src").is_dir() else []
            folders.append(str(place))
    return folders


def _visible_devices(spec: ReplicaSpec) -> dict[str, str]:
    """Returns the variables that name the GPUs. In a container the driver counts only those of the container;
    the second variable is read by its runtime, and an image may set it to all."""
    gpus = spec.node.gpus
    if not spec.launch.image:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(gpus)))),
        "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, gpus)) if gpus and spec.node.nvml else "void",
    }


def _gpu_share(spec: ReplicaSpec) -> dict[str, str]:
    """Returns defaults for frameworks that would allocate a whole GPU at their start although the run has
    only a share of it."""
    if not spec.node.gpus or spec.node.gpu_milli >= WHOLE_GPU:
        return {}
    share = spec.node.gpu_milli / WHOLE_GPU * _TORCH_MEMORY_SHARE
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share:.3f}", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def make_sdk_folder(home: Path) -> Path:
    """Creates a folder that contains only `hopyard`, so that any interpreter can import the SDK without other
    packages."""
    folder = home / "cache" / "sdk"
    link = folder / "hopyard"
    package = str(Path(__file__).resolve().parent.parent)
    try:
        if os.readlink(link) == package:
            return folder
    except OSError:
        pass
    make_folder(folder)
    scratch = folder / f".hopyard.{os.getpid()}"
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(package)
    scratch.replace(link)
    return folder
