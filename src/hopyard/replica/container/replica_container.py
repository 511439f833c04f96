"""Starts the user's process of a replica in a container, and removes the container after its end."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hopyard.config.home import Home
from hopyard.container_engine.container_labels import (
    ATTEMPT_LABEL,
    HOME_LABEL,
    REMOVE_TIMEOUT_S,
    container_name,
    home_tag,
    network_name,
    remove_container,
)
from hopyard.container_engine.engine_api import EngineApi
from hopyard.container_engine.engine_discovery import ContainerEngine, open_engine
from hopyard.domain.replica import ReplicaSpec
from hopyard.domain.run_network import RunNetwork
from hopyard.errors import ContainerError
from hopyard.replica import process_tree, user_process
from hopyard.replica.container.container_console import ContainerConsole
from hopyard.replica.container.container_image import ContainerImage, find_image
from hopyard.replica.container.container_settings import (
    ContainerMounts,
    check_dataset_path,
    check_gpus,
    container_settings,
)
from hopyard.replica.container.engine_connection import connect_engine
from hopyard.replica.container.gang_network import GangNetwork, open_network
from hopyard.replica.container.node_commands import node_program
from hopyard.replica.container.oom_watch import container_cgroups
from hopyard.replica.errors import NodeFault, PrepareFailed
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.process_env import make_sdk_folder
from hopyard.replica.resource_limits import ReplicaCgroups
from hopyard.replica.user_process import ProcessSpec, StartedProcess

_START_TIMEOUT_S = 120.0
T = TypeVar("T")
_PACKAGE = Path(__file__).resolve().parents[2]
_RUN_STATUSES = (400, 404, 409)  # of answers that blame the request, not the engine


class ContainerCgroups(ReplicaCgroups):
    """The control groups of a container, which the engine makes and removes. They are gone at its end, so
    the program beside the container counts what the kernel has killed."""

    def __init__(self, folders: Mapping[str, Path], container: ReplicaContainer) -> None:
        super().__init__(folders)
        self._container = container

    def oom_kills(self) -> int:
        return max(super().oom_kills(), int(self._container.was_out_of_memory()))

    def unknown_exit_reason(self) -> str:
        if not self._container.has_unknown_exit():
            return ""
        return "the container engine lost the exit code of the container: its monitor was killed"

    def remove(self, *, timeout_s: float = 5.0) -> None:  # noqa: ARG002
        process_tree.kill_processes(self.pids())
        self.folders.clear()


class ReplicaContainer:
    """The container of one replica. The methods raise PrepareFailed.

    image: runs in place of that of the spec. report: receives what takes long. restore: the tree of the
    checkpoint, if there is one. trees: of the datasets, by name.
    """

    def __init__(
        self,
        spec: ReplicaSpec,
        gang: GangFolder,
        image: str,
        *,
        trees: Mapping[str, Path],
        restore: Path | None,
        report: Callable[[str], None],
    ) -> None:
        self._spec, self._gang, self._trees, self._restore = spec, gang, trees, restore
        self._report = report
        self._name = container_name(spec.node.home, spec.launch.attempt, spec.launch.rank)
        self._engine: ContainerEngine = connect_engine(Path(spec.node.home), report)
        check_gpus(spec.node, self._engine.name)
        self._image: ContainerImage = checked(lambda: find_image(self._engine.api, image, report), spec)
        self._channel: socket.socket | None = None
        self._received = b""
        self._end: dict[str, Any] = {}
        self._pid = 0

    @property
    def image_variables(self) -> Mapping[str, str]:
        return self._image.variables

    @property
    def pid(self) -> int:
        """The first process of the container, as this node numbers it."""
        return self._pid

    def start(self, process: ProcessSpec) -> tuple[StartedProcess, ReplicaCgroups]:
        """Starts the command of `process` in a new container. The returned process represents it."""
        return checked(lambda: self._start(process), self._spec)

    def was_out_of_memory(self) -> bool:
        """Returns whether the kernel has killed processes of the container because of memory."""
        self._receive(wait=False)
        return bool(self._end.get("oom"))

    def has_unknown_exit(self) -> bool:
        """Returns whether the container has ended, and its engine does not know how."""
        self._receive(wait=False)
        return "code" in self._end and self._end["code"] is None

    def console(self, process: ProcessSpec) -> ContainerConsole:
        """Returns what starts processes beside that of `process`."""
        return ContainerConsole(process, self._engine.api.path, self._name)

    def remove(self) -> None:
        """Removes the container. The network stays for replicas that have not started yet: the engine removes
        it with the folder of the attempt."""
        process_tree.remove_container(self._pid)
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._remove()

    def _remove(self) -> None:
        # if that takes too long, the engine of the node repeats it
        remove_container(EngineApi(self._engine.api.path, timeout_s=REMOVE_TIMEOUT_S), self._name)

    def _start(self, process: ProcessSpec) -> tuple[StartedProcess, ReplicaCgroups]:
        api = self._engine.api
        remove_container(api, self._name)  # of an earlier process
        body = container_settings(
            replace(self._spec, launch=replace(self._spec.launch, image=self._image.id)),
            process.argv,
            self._variables(process.env),
            cwd=process.cwd,
            stdout=process.stdout,
            stderr=process.stderr,
            umask=process.umask,
            mounts=self._mounts(),
            network=self._network(),
            user=(os.geteuid(), os.getegid()),
            is_rootless_podman=self._engine.rootless and self._engine.name == "Podman",
            memory_total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )
        api.post("/containers/create", body, name=self._name)
        api.put_archive(self._name, _home_archive(Home(Path(self._spec.node.home))))
        own, theirs = socket.socketpair()
        self._received, self._end = b"", {}
        try:
            standard = (theirs.fileno(), *_open_streams(process))
            try:
                program = node_program(
                    process,
                    "container_process",
                    str(api.path),
                    self._name,
                    env={},
                    cwd=self._gang.root,
                    standard=standard,
                )
                started = user_process.start_process(program)
            finally:
                for descriptor in standard[1:]:
                    os.close(descriptor)
                theirs.close()
            own.settimeout(_START_TIMEOUT_S)
            self._channel = own
            self._await_start()
            own.setblocking(False)  # the supervisor reads it between its other checks
        except BaseException:
            own.close()
            self._channel = None
            self._remove()
            raise
        folders = container_cgroups(self._pid)
        process_tree.add_container(self._pid, next(iter(folders.values()), None))
        return started, ContainerCgroups(folders, self)

    def _await_start(self) -> None:
        while b"\n" not in self._received:
            self._receive(wait=True)
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise ContainerError(answer["error"], status=int(answer["status"]))
        self._pid = int(answer["pid"])

    def _receive(self, *, wait: bool) -> None:
        if self._channel is None:
            return
        try:
            data = self._channel.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            raise ContainerError(f"the container did not start: {error}") from error
        if wait and not data:
            raise ContainerError("the program that starts the container was killed")
        self._received += data
        if not wait:
            *lines, self._received = self._received.split(b"\n")
            for line in lines:
                self._end = json.loads(line).get("end") or self._end

    def _network(self) -> GangNetwork | None:
        launch = self._spec.launch
        if launch.world_size <= 1:
            return None
        home, attempt = self._spec.node.home, launch.attempt
        labels = {HOME_LABEL: home_tag(home), ATTEMPT_LABEL: attempt}
        name = network_name(home, attempt)
        with self._gang.locked():
            return open_network(
                self._engine,
                name,
                attempt,
                launch.world_size,
                labels,
                is_internal=launch.network is RunNetwork.NONE,
            )

    def _variables(self, env: Mapping[str, str]) -> dict[str, str]:
        variables = dict(env)
        if inherited := self._image.variables.get("PYTHONPATH"):
            variables["PYTHONPATH"] = f"{variables['PYTHONPATH']}{os.pathsep}{inherited}"
        return variables

    def _mounts(self) -> ContainerMounts:
        launch, home = self._spec.launch, Home(Path(self._spec.node.home))
        gang = self._gang.root.resolve()
        sdk = make_sdk_folder(home.root)
        read_only = {sdk / "hopyard": _PACKAGE, home.address_dir: home.address_dir.resolve()}
        read_only |= {tree: tree.resolve() for tree in self._trees.values()}
        if self._restore is not None:
            read_only[self._restore] = self._restore.resolve()
        for ref in launch.datasets:
            if ref.path.startswith("/"):
                target = check_dataset_path(ref.name, ref.path, home.root)
                read_only[target] = self._trees[ref.name].resolve()
        places = (self._gang.place, *self._gang.continued_places)
        return ContainerMounts(read_only, {self._gang.root: gang, **dict.fromkeys(places, gang)})


def remove_container_of(spec: ReplicaSpec) -> None:
    """Removes the container of a replica that died."""
    with suppress(ContainerError, OSError):
        name = container_name(spec.node.home, spec.launch.attempt, spec.launch.rank)
        remove_container(open_engine(timeout_s=REMOVE_TIMEOUT_S).api, name)


def checked(call: Callable[[], T], spec: ReplicaSpec) -> T:
    """Maps an error of the engine: one that blames the request fails the run, another one the attempt."""
    try:
        return call()
    except ContainerError as error:
        text = error.message
        if "/bin/sh" in text:
            raise PrepareFailed(
                f"image {spec.launch.image} has no /bin/sh, which starts the command (use an image with a "
                "shell)",
                127,
            ) from error
        reason = f"the container of image {spec.launch.image} could not be started: {text}"
        raise (PrepareFailed(reason) if error.status in _RUN_STATUSES else NodeFault(reason)) from error


def _home_archive(home: Home) -> bytes:
    """Returns the links to the addresses of the server, which are beside the mounts of the home."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        folder = tarfile.TarInfo(str(home.root).lstrip("/"))
        folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o755, os.geteuid(), os.getegid()
        archive.addfile(folder)
        for file in (home.server_file, home.socket_file):
            link = tarfile.TarInfo(str(file).lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, f"{home.address_dir.name}/{file.name}"
            archive.addfile(link)
    return stream.getvalue()


def _open_streams(process: ProcessSpec) -> tuple[int, int]:
    return user_process.open_stream(process.stdout), user_process.open_stream(process.stderr)
