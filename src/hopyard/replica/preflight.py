"""The checks of a replica before its script starts, for problems that would end it later with a less clear
error: of its node, of what was prepared, and of the connections to the other replicas of its gang."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.config.home import Home
from hopyard.config.node_checks import check_node
from hopyard.datasets.tree_cache import TreeCache
from hopyard.domain.ids import Digest
from hopyard.domain.preflight import Check, CheckFailure, Preflight, PreflightLaunch
from hopyard.domain.replica import ReplicaSpec
from hopyard.errors import HopyardError
from hopyard.replica.errors import PreflightFailed, PreparationInterrupted
from hopyard.replica.pair_checks import PairChecks
from hopyard.replica.python_environment import PythonInterpreter, locked_packages, mark_broken
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_START_TIMEOUT_S = 30.0  # of an interpreter
_TOO_SLOW = f"did not start within {_START_TIMEOUT_S:.0f} s"


class ReplicaPreflight:
    """The checks of one replica. Those between replicas run beside the preparation."""

    def __init__(self, spec: ReplicaSpec, folder: ReplicaDir, server: ServerConnection) -> None:
        self._spec, self._folder, self._server = spec, folder, server
        self._checks = spec.launch.preflight.checks
        self._pairs: PairChecks | None = None
        self._lock, self._may_interrupt = threading.Lock(), False

    def begin(self) -> None:
        """Checks the node, and starts the checks between replicas. Raises PreflightFailed."""
        self._forget_keys()
        if self._checks is Preflight.OFF:
            return
        node = self._spec.node
        gpus = node.gpus if node.nvml else None
        for check, problem in check_node(self._folder.root, Home(Path(node.home)), gpus):
            if problem:
                raise PreflightFailed(CheckFailure(check, f"{problem} (node {node.id})", blames_node=True))
        if self._checks is Preflight.NODE:
            return
        self._pairs = PairChecks.find(self._spec, on_failure=self._interrupt)
        if self._pairs is not None:
            self._may_interrupt = True
            self._pairs.start()

    def finish(
        self, interpreter: PythonInterpreter, datasets: Mapping[str, Digest], cache: TreeCache
    ) -> None:
        """Checks what was prepared, and waits for the checks between replicas. datasets: the digests of the
        manifests by name. Raises PreflightFailed."""
        if self._checks is Preflight.OFF:
            return
        self._check_environment(interpreter)
        self._check_datasets(datasets, cache)
        if self._pairs is None:
            return
        self._pairs.wait()
        self.disable_interrupt()
        if self._pairs.failure is not None:
            raise PreflightFailed(self._pairs.failure)
        if self._spec.launch.rank == min(self._spec.launch.preflight.ranks):
            for warning in self._pairs.warnings:
                self._folder.record_note(f"preflight: {warning}")

    def disable_interrupt(self) -> None:
        """A check between replicas that fails from now on does not interrupt the main thread."""
        with self._lock:
            self._may_interrupt = False

    def close(self) -> None:
        """Ends the connections to other replicas, because this one ends."""
        self.disable_interrupt()
        if self._pairs is not None:
            self._pairs.close()

    def raise_if_failed(self) -> None:
        """Called by the handler of SIGTERM. Raises PreparationInterrupted if a check between replicas failed
        while the replica still prepares."""
        pairs = self._pairs
        if self._may_interrupt and pairs is not None and pairs.failure is not None:
            self._may_interrupt = False
            raise PreparationInterrupted(pairs.failure)

    def report(self, failure: CheckFailure) -> None:
        """Reports the failure in the events of the run, and to the server if the node is to blame."""
        launch = self._spec.launch
        self._folder.record_note(f"replica {launch.rank}: {failure.reason()}")
        if not failure.blames_node or not launch.preflight.key:
            return
        body: api.PreflightFailureIn = {
            "key": launch.preflight.key,
            "check": failure.check.value,
            "found": failure.found,
        }
        try:
            self._server.client.report_preflight(launch.attempt, launch.rank, body)
        except HopyardError as error:  # the failure of the attempt itself is reported with its exit
            log(f"preflight: not reported: {error}")

    def _interrupt(self) -> None:
        """Ends the preparation, which may take long. Runs in the thread of the checks."""
        with self._lock:
            if self._may_interrupt:
                os.kill(os.getpid(), signal.SIGTERM)

    def _forget_keys(self) -> None:
        """Removes the secrets from the file of the spec before code of a user can read it: otherwise a script
        could report failures of its node."""
        if self._spec.launch.preflight.key or self._spec.launch.preflight.secret:
            bare = replace(self._spec.launch, preflight=PreflightLaunch(self._checks))
            with suppress(OSError):  # on a full disk, which fails a check anyway
                self._folder.write_spec(replace(self._spec, launch=bare))

    def _check_environment(self, interpreter: PythonInterpreter) -> None:
        if interpreter.virtual_env is None or interpreter.lock is None:
            return  # the interpreter of the caller, of which no packages are recorded
        problem = find_environment_problem(interpreter)
        if problem:
            found = f"{problem} (node {self._spec.node.id})"
            hint = f"remove the folder {interpreter.virtual_env} to build it again"
            if _TOO_SLOW not in problem:  # otherwise the machine is busy, and other runs may use the folder
                with suppress(OSError):
                    mark_broken(interpreter.virtual_env)
                    hint = "the next attempt builds the environment again"
            raise PreflightFailed(CheckFailure(Check.ENVIRONMENT, found, hint))

    def _check_datasets(self, datasets: Mapping[str, Digest], cache: TreeCache) -> None:
        for name, manifest in datasets.items():
            damaged = cache.find_damage(manifest)
            if damaged:
                found = f"{damaged} of dataset {name} has other bytes than were stored"
                hint = f"the next attempt fetches it again; check the disk of node {self._spec.node.id}"
                raise PreflightFailed(CheckFailure(Check.DATASET, found, hint, blames_node=True))


def find_python_problem(path: str) -> str:
    """Returns why an interpreter does not start; "" if it does."""
    try:
        result = subprocess.run(
            [path, "-I", "-S", "-c", ""],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the interpreter {path} {_TOO_SLOW}"
    except OSError as error:
        return f"the interpreter {path} does not start: {error.strerror or error}"
    if result.returncode:
        last_line = (result.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return f"the interpreter {path} does not start: {last_line}"
    return ""


def find_environment_problem(interpreter: PythonInterpreter) -> str:
    """Returns why an environment that was built does not work: its interpreter does not start, or a package
    of its lock is not installed; "" if there is no reason."""
    problem = find_python_problem(interpreter.path)
    if problem:
        return problem
    assert interpreter.virtual_env is not None and interpreter.lock is not None
    installed = {
        _normalise(path.name.removesuffix(".dist-info").rpartition("-")[0])
        for path in interpreter.virtual_env.glob("lib*/python*/site-packages/*.dist-info")
    }
    # a package with a condition (`; sys_platform == "win32"`) may not be for this platform
    lines = [line for line in interpreter.lock.splitlines() if b";" not in line]
    missing = sorted(name for name in locked_packages(b"\n".join(lines)) if _normalise(name) not in installed)
    return f"package {missing[0]} of its lock is not installed" if missing else ""


def _normalise(name: str) -> str:
    """Returns the name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
