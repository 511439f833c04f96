"""Finds the container engine of this node: Docker, Podman's own service, or one that is started here."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerEngineUnavailable, ContainerError
from hopyard.private_files import make_folder, open_file

_IDLE_S = 3600  # without a connection, the service that is started here ends
_START_TIMEOUT_S = 30.0
_AWAY_HINT = "start the container engine of the node again: Docker, or `podman system service`"
_NO_ENGINE_HINT = (
    "install Podman, or Docker and add this user to the group docker; DOCKER_HOST=unix:///… of the server "
    "names another socket"
)


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """name: `Docker` or `Podman`. rootless: whether it runs as a user of its own user namespace."""

    api: EngineApi
    name: str
    version: str
    rootless: bool = False


def find_engine(environ: Mapping[str, str] = os.environ, *, timeout_s: float = 120.0) -> ContainerEngine:
    """Returns the first engine that answers. timeout_s: for each of its answers, now and later. Raises
    ContainerError, with hints, where there is none: ContainerEngineUnavailable, if the first one that this
    user may use does not answer."""
    problem: ContainerError | None = None
    for path in _sockets(environ):
        try:
            return _describe(EngineApi(path, timeout_s=timeout_s))
        except ContainerError as error:
            problem = problem or (error if path.exists() else None)
    if isinstance(problem, ContainerEngineUnavailable):
        raise ContainerEngineUnavailable(problem.message, hints=(_AWAY_HINT,)) from problem
    if problem is not None:
        raise ContainerError(problem.message, hints=(_NO_ENGINE_HINT,)) from problem
    raise ContainerError(
        "this node has no container engine that can be reached: neither Docker nor Podman",
        hints=(_NO_ENGINE_HINT,),
    )


def open_engine(environ: Mapping[str, str] = os.environ, *, timeout_s: float = 120.0) -> ContainerEngine:
    """As `find_engine`. Where no engine answers, Podman's service is started: it may have ended, or been
    killed."""
    try:
        return find_engine(environ, timeout_s=timeout_s)
    except ContainerError as error:
        try:
            start_podman_service(environ, timeout_s=timeout_s)
        except OSError as problem:
            raise error from problem
        return find_engine(environ, timeout_s=timeout_s)


def start_podman_service(environ: Mapping[str, str] = os.environ, *, timeout_s: float = 120.0) -> None:
    """Starts Podman's service where no engine answers and the program exists. It outlives this process and
    ends after an hour without a connection. timeout_s: for each answer of an engine. Raises ContainerError
    if the service does not answer: ContainerEngineUnavailable, if it was started."""
    podman = _podman(environ)
    if podman is None:
        return
    path = _own_socket()
    make_folder(path.parent)
    if not _is_private(path.parent):
        raise ContainerError(f"{path.parent} belongs to another user", hints=("remove the folder",))
    lock = open_file(path.with_name("lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            find_engine(environ, timeout_s=timeout_s)
            return
        except ContainerError:
            path.unlink(missing_ok=True)
        # the shell ends at once, so that the service is no child of this process
        words = [podman, "system", "service", f"--time={_IDLE_S}", f"unix://{path}"]
        script = '"$@" </dev/null >/dev/null 2>&1 &'
        subprocess.run(
            ["/bin/sh", "-c", script, "sh", *words], start_new_session=True, check=False, cwd=path.parent
        )
        _await_engine(path)
    finally:
        os.close(lock)


def is_own_service(path: Path) -> bool:
    """Returns whether the socket is that of the service that `start_podman_service` starts."""
    return path == _own_socket()


def can_start_podman(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether `start_podman_service` would start it."""
    return _podman(environ) is not None


def _podman(environ: Mapping[str, str]) -> str | None:
    return None if environ.get("DOCKER_HOST") else shutil.which("podman", path=environ.get("PATH"))


def _await_engine(path: Path) -> None:
    give_up_at = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            _describe(EngineApi(path))
            return
        except ContainerError as error:
            if time.monotonic() > give_up_at:
                raise ContainerEngineUnavailable(error.message, hints=(_AWAY_HINT,)) from error
            time.sleep(0.05)


def _sockets(environ: Mapping[str, str]) -> Iterator[Path]:
    host = environ.get("DOCKER_HOST", "")
    if host:
        if not host.startswith("unix://"):
            raise ContainerError(
                f"DOCKER_HOST is {host}, which is not a socket of this node",
                hints=("set DOCKER_HOST=unix:///…, or remove it: containers use folders of this node",),
            )
        yield Path(host.removeprefix("unix://"))
        return
    yield Path("/var/run/docker.sock")
    if os.geteuid() == 0:
        yield Path("/run/podman/podman.sock")
    yield Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}") / "podman" / "podman.sock"
    own = _own_socket()
    if _is_private(own.parent):  # it is in a folder where each user may create it
        yield own


def _own_socket() -> Path:
    """Returns a short path: a socket cannot have one of more than 107 bytes."""
    return Path(tempfile.gettempdir()) / f"hopyard-podman-{os.geteuid()}" / "podman.sock"


def _is_private(folder: Path) -> bool:
    """Returns whether the folder is of this user, and no other may create files in it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _describe(api: EngineApi) -> ContainerEngine:
    version, info = api.get("/version"), api.get("/info")
    components = {str(part.get("Name", "")) for part in version.get("Components") or ()}
    name = "Podman" if any("Podman" in component for component in components) else "Docker"
    rootless = any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
    return ContainerEngine(api, name, str(version.get("Version", "")), bool(info.get("Rootless")) or rootless)
