"""Starts processes beside the script in its container, for `hop exec`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopyard.replica.container.node_commands import node_program
from hopyard.replica.user_process import ProcessSpec, start_process

EXEC_VARIABLE = "HOPYARD_CONTAINER_EXEC"  # of the program that connects to the process
_PYTHON_WORDS = {"python": "python3"}


@dataclass(frozen=True, slots=True)
class ContainerConsole:
    """As `console_process.ConsoleProcess`. script: how the script was started. socket: of the engine."""

    script: ProcessSpec
    socket: Path
    container: str

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        standard: tuple[int, int, int],
        *,
        has_terminal: bool,
    ) -> int:
        """Returns the pid of a process of the node, which ends with that of the container. See
        `ConsoleProcess.start`."""
        variables = {**self.script.env, **env}
        request = {
            "Cmd": [_PYTHON_WORDS.get(words[0], words[0]), *words[1:]],
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "WorkingDir": str(self.script.cwd),
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": has_terminal,
        }
        program = node_program(
            self.script,
            "container_exec",
            str(self.socket),
            self.container,
            # not in the arguments: it has the secrets of the run
            env={**env, EXEC_VARIABLE: json.dumps(request)},
            cwd=Path("/"),
            standard=standard,
            has_terminal=has_terminal,
        )
        return start_process(program).pid
