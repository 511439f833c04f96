"""Starts processes beside the script: with its environment, working folder, mounts and limits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode
from hopyard.replica.user_process import ProcessSpec, start_process


class ConsoleLauncher(Protocol):
    """Starts processes beside the script."""

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        standard: tuple[int, int, int],
        *,
        has_terminal: bool,
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class ConsoleProcess:
    """How to start a process beside the script. script: how that was started. pid: of the script.
    interpreter: the Python of the run's environment."""

    script: ProcessSpec
    pid: int
    interpreter: str

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        standard: tuple[int, int, int],
        *,
        has_terminal: bool,
    ) -> int:
        """Returns the pid of the process, which leads a session of its own. env: more variables. standard:
        its standard streams. Raises PrepareFailed."""
        argv = list(words)
        if argv[0] in ("python", "python3"):
            argv[0] = self.interpreter
        namespace: int | None = None
        if self.script.view is not None and detect_isolation_mode() is IsolationMode.USER_NAMESPACE:
            # of another mount view: processes in one user namespace see each other, as debuggers must
            with suppress(OSError):
                namespace = os.open(f"/proc/{self.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return start_process(
                replace(
                    self.script,
                    argv=argv,
                    env={**self.script.env, **env},
                    namespace=namespace,
                    standard=standard,
                    has_terminal=has_terminal,
                )
            ).pid
        finally:
            if namespace is not None:
                os.close(namespace)
