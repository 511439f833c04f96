"""A real Podman for tests: its service with a storage of its own, and a small image of this machine's Python.

The image has what tests need and nothing from a registry: Python, a shell and a few programs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import uv

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError

IMAGE = "hopyard-test/python:1"
_PYTHON = Path("/usr/bin/python3")
_PROGRAMS = ("dash", "cat", "sleep", "env", "id", "ls", "rm")
_LEFT_OUT = re.compile(r"/(test|__pycache__|idlelib|lib2to3|ensurepip|turtledemo|tkinter|config-[^/]*)(/|$)")
_CONFIG = """[containers]
default_ulimits=["nofile=1024:1024","nproc=1000:1000"]
[engine]
runtime="runc"
cgroup_manager="cgroupfs"
events_logger="file"
[network]
network_backend="netavark"
"""


@dataclass(frozen=True)
class Podman:
    """variables: of a server that is to find it. command: `podman` with the same storage. old_networks: of
    other tests. All services share the networks, so that each has a device of its own.
    service: the pid of this one."""

    api: EngineApi
    storage: Path
    variables: dict[str, str]
    command: tuple[str, ...]
    old_networks: frozenset[str]
    service: int

    def containers(self) -> list[str]:
        """Returns the names of all containers."""
        try:
            return [values["Names"][0] for values in self.api.get("/containers/json", all=True)]
        except ContainerError as error:
            if "container not known" not in error.message:
                raise
            return [error.message]  # one without files, which must be removed, too

    def networks(self) -> list[str]:
        """Returns the names of the networks of gangs."""
        return [name for name in _gang_networks(self.api) if name not in self.old_networks]


def _gang_networks(api: EngineApi) -> list[str]:
    names = [values["Name"] for values in api.get("/networks")]
    return [name for name in names if name.startswith("hopyard-")]


def missing_programs() -> str:
    """Returns why there is no Podman for tests; "" if there is one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root for Podman with limits"
    missing = [name for name in ("podman", "runc") if shutil.which(name) is None]
    missing += [] if Path("/usr/lib/podman/netavark").exists() else ["netavark"]
    missing += [] if shutil.which("iptables") and shutil.which("catatonit") else ["iptables", "catatonit"]
    missing += [] if _PYTHON.exists() else [str(_PYTHON)]
    return f"needs {', '.join(missing)}" if missing else ""


def serve_podman(folder: Path) -> Iterator[Podman]:
    """Starts the service with its storage in `folder`, and yields it once it has the image."""
    config, socket = folder / "containers.conf", folder / "p.sock"
    config.write_text(_CONFIG)
    variables = {"CONTAINERS_CONF": str(config), "DOCKER_HOST": f"unix://{socket}"}
    environment = {**os.environ, **variables}
    state = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))  # Podman takes at most 50 characters
    podman = ["podman", "--root", str(folder / "storage"), "--runroot", str(state)]
    log = (folder / "podman.log").open("wb")
    service = subprocess.Popen(
        [*podman, "system", "service", "--time=0", f"unix://{socket}"],
        env=environment,
        cwd=folder,  # Podman writes a file `oom` there
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        archive = folder / "image.tar"
        _write_image(archive)
        subprocess.run(
            [*podman, "import", str(archive), IMAGE], env=environment, check=True, capture_output=True
        )
        archive.unlink()
        api = EngineApi(socket)
        give_up_at = time.monotonic() + 60
        while True:
            try:
                api.get("/version")
                break
            except ContainerError:
                assert time.monotonic() < give_up_at and service.poll() is None, (
                    folder / "podman.log"
                ).read_text()
                time.sleep(0.05)
        old_networks = frozenset(_gang_networks(api))
        yield Podman(api, folder / "storage", variables, tuple(podman), old_networks, service.pid)
    finally:
        subprocess.run([*podman, "rm", "-fa", "-t0"], env=environment, check=False, capture_output=True)
        os.killpg(service.pid, signal.SIGTERM)
        service.wait(60)
        _end_monitors(folder)
        log.close()
        shutil.rmtree(state, ignore_errors=True)


def _end_monitors(folder: Path) -> None:
    """Ends the monitors of `hop exec`, which Podman keeps for five minutes after the command has ended."""
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or ()
        if process.info["name"] == "conmon" and any(word.startswith(f"{folder}/") for word in words):
            process.kill()


def _write_image(archive: Path) -> None:
    python = _PYTHON.resolve()
    library = Path("/usr/lib") / python.name
    programs = [python, *(Path(shutil.which(name) or name).resolve() for name in _PROGRAMS)]
    files = {Path("/usr/bin") / path.name: path for path in programs}
    # uv is mounted when an image is built
    for binary in [*programs, Path(uv.find_uv_bin()), *(library / "lib-dynload").glob("*.so")]:
        listed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
        for name in re.findall(r"(/\S+) \(0x", listed):
            target = Path(name) if name.startswith("/usr") else Path(f"/usr{name}")
            files[target] = Path(name).resolve()
    with tarfile.open(archive, "w") as tar:
        links = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash"}
        for place_of_link, linked in {**links, "usr/bin/python3": python.name}.items():
            link = tarfile.TarInfo(place_of_link)
            link.type, link.linkname = tarfile.SYMTYPE, linked
            tar.addfile(link)
        for place, source in sorted(files.items()):
            tar.add(source, str(place))
        tar.add(library, filter=lambda entry: None if _LEFT_OUT.search(entry.name) else entry)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if reason := missing_programs():
        pytest.skip(reason)
    yield from serve_podman(tmp_path_factory.mktemp("podman"))
