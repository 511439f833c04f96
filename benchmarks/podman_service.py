"""Podman's service with a storage of its own, and a small image of this machine's Python.

The image has what scripts need and nothing from a registry: Python, a shell and a few programs.
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
from collections.abc import Sequence
from pathlib import Path

import psutil
import uv

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError

IMAGE = "hopyard-test/python:1"
_PYTHON = Path("/usr/bin/python3")
_PROGRAMS = ("dash", "cat", "sleep", "env", "id", "ls", "rm")
_LEFT_OUT = re.compile(r"/(test|__pycache__|idlelib|lib2to3|ensurepip|turtledemo|tkinter|config-[^/]*)(/|$)")
_CONFIG = """[containers]
default_ulimits=["nofile=1024:1024","nproc=1000:1000"]
volumes=[{volumes}]
[engine]
runtime="runc"
cgroup_manager="cgroupfs"
events_logger="file"
[network]
network_backend="netavark"
"""
_TIMEOUT_S = 60.0


def missing_programs() -> str:
    """Returns why there is no Podman for tests; "" if there is one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root for Podman with limits"
    missing = [name for name in ("podman", "runc") if shutil.which(name) is None]
    missing += [] if Path("/usr/lib/podman/netavark").exists() else ["netavark"]
    missing += [] if shutil.which("iptables") and shutil.which("catatonit") else ["iptables", "catatonit"]
    missing += [] if _PYTHON.exists() else [str(_PYTHON)]
    return f"needs {', '.join(missing)}" if missing else ""


class PodmanService:
    """The service, its storage and its image, in a folder. Call `start`, and `end` at last.

    shared: folders that each container sees, by the same path and writable. variables: of a server that is to
    find the service. command: `podman` with the same storage.
    """

    def __init__(self, folder: Path, *, shared: Sequence[Path] = ()) -> None:
        self.folder, self.storage = folder, folder / "storage"
        config, self.socket = folder / "containers.conf", folder / "p.sock"
        config.write_text(_CONFIG.format(volumes=",".join(f'"{path}:{path}"' for path in shared)))
        self.variables = {"CONTAINERS_CONF": str(config), "DOCKER_HOST": f"unix://{self.socket}"}
        # Podman takes at most 50 characters
        self._state = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))
        self.command = ("podman", "--root", str(self.storage), "--runroot", str(self._state))
        self.api = EngineApi(self.socket)
        self._environment = {**os.environ, **self.variables}  # not that of a home that begins later
        self._service: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._service.pid if self._service is not None else 0

    def start(self) -> None:
        """Starts the service; returns when it answers. After its death it is started again, with the same
        storage. Raises TimeoutError."""
        if self._service is not None:
            self._service.wait(_TIMEOUT_S)
        self.socket.unlink(missing_ok=True)
        with (self.folder / "podman.log").open("ab") as log:
            self._service = subprocess.Popen(
                [*self.command, "system", "service", "--time=0", f"unix://{self.socket}"],
                env=self._environment,
                cwd=self.folder,  # Podman writes a file `oom` there
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        give_up_at = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                self.api.get("/version")
                return
            except ContainerError as error:
                if time.monotonic() > give_up_at or self._service.poll() is not None:
                    text = (self.folder / "podman.log").read_text()
                    raise TimeoutError(f"Podman's service does not answer: {text}") from error
                time.sleep(0.05)

    def load_image(self) -> None:
        """Makes `IMAGE`."""
        archive = self.folder / "image.tar"
        _write_image(archive)
        subprocess.run(
            [*self.command, "import", str(archive), IMAGE],
            env=self._environment,
            check=True,
            capture_output=True,
        )
        archive.unlink()

    def end(self) -> None:
        """Removes all containers of this storage, and ends the service and its monitors."""
        subprocess.run(
            [*self.command, "rm", "-fa", "-t0"], env=self._environment, check=False, capture_output=True
        )
        if self._service is not None:
            if self._service.poll() is None:
                os.killpg(self._service.pid, signal.SIGTERM)
            self._service.wait(_TIMEOUT_S)
        for monitor in self.monitors():
            monitor.kill()
        shutil.rmtree(self._state, ignore_errors=True)

    def monitors(self) -> list[psutil.Process]:
        """Returns the processes `conmon` of this storage. Podman keeps those of `hop exec` for five minutes
        after the command has ended."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or ()
            if process.info["name"] == "conmon" and any(
                word.startswith((f"{self.folder}/", f"{self._state}/")) for word in words
            ):
                found.append(process)
        return found


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
