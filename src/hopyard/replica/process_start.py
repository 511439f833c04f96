"""Starts the user's process where it runs: on the node, in control groups of its own, or in a container."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.console.console_process import ConsoleLauncher, ConsoleProcess
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.prepare import PreparedRun
from hopyard.replica.resource_limits import ReplicaCgroups
from hopyard.replica.user_process import ProcessSpec, StartedProcess, start_process

if TYPE_CHECKING:
    from hopyard.replica.container.replica_container import ReplicaContainer


@dataclass(frozen=True, slots=True)
class ProcessLauncher:
    """interpreter: the Python of the run. container: of a run with an image."""

    spec: ReplicaSpec
    interpreter: str
    container: ReplicaContainer | None = None

    @classmethod
    def open(
        cls, spec: ReplicaSpec, gang: GangFolder, prepared: PreparedRun, report: Callable[[str], None]
    ) -> ProcessLauncher:
        """Finds the image of the container, if the run has one. report: receives what takes long. Raises
        PrepareFailed."""
        if not spec.launch.image:
            return cls(spec, prepared.interpreter.path)
        from hopyard.replica.container.replica_container import ReplicaContainer  # late: most runs have none

        trees, restore = prepared.datasets, prepared.restore
        image = prepared.interpreter.image or spec.launch.image
        container = ReplicaContainer(spec, gang, image, trees=trees, restore=restore, report=report)
        return cls(spec, prepared.interpreter.path, container)

    @property
    def container_pid(self) -> int:
        """As in `ReplicaState`."""
        return 0 if self.container is None else self.container.pid

    def start(self, process: ProcessSpec) -> tuple[StartedProcess, ReplicaCgroups]:
        """Returns the process, and its control groups. Raises PrepareFailed."""
        if self.container is not None:
            return self.container.start(process)
        cgroups = ReplicaCgroups.create(self.spec.node, self.spec.launch.resources)
        try:
            started = start_process(replace(process, groups=tuple(dict.fromkeys(cgroups.folders.values()))))
        except PrepareFailed:
            cgroups.remove()
            raise
        cgroups.drop(started.failed_cgroups)
        return started, cgroups

    def console(self, process: ProcessSpec, started: StartedProcess) -> ConsoleLauncher:
        """Returns what starts processes beside the user's process."""
        if self.container is not None:
            return self.container.console(process)
        return ConsoleProcess(process, started.pid, self.interpreter)

    def end(self) -> None:
        """Removes what the process used, after its end."""
        if self.container is not None:
            self.container.remove()
