"""A Hopyard home with a real server and the real `hop` command, and the faults that can be injected into
it."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect
from hopyard.config.home import Home
from hopyard.errors import HopyardError, ServerUnavailable
from tests.exploration import SEED

DEADLINE_S = 120.0  # generous: it only ends a test that hangs
HOP = str(Path(sys.executable).parent / "hop")
FINAL = ("succeeded", "failed", "cancelled")
Result = TypeVar("Result")


def wait_until(
    condition: Callable[[], Result], description: str = "the condition", *, deadline_s: float = DEADLINE_S
) -> Result:
    """Waits until `condition` returns a true value, and returns this value.

    A long wait polls less often: each request takes CPU time from the processes that the test waits for."""
    started = time.monotonic()
    while not (value := condition()):
        elapsed_s = time.monotonic() - started
        assert elapsed_s < deadline_s, f"{description} was not met in time"
        time.sleep(min(0.02 + elapsed_s / 20, 0.15))
    return value


def seeded_random(seed: int) -> random.Random:
    """Returns a random generator with a printed seed, so that a failure can be reproduced. `make explore`
    uses other seeds."""
    seed += SEED
    print(f"seed {seed}")
    return random.Random(seed)


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


class ServerHome:
    """A home below `root`, and the working folder `work`, whose name is the name of the project."""

    def __init__(
        self,
        root: Path,
        *,
        home: Path | None = None,
        settings: str = "node: {id: box, cpus: 4, memory: 8G}\n",
    ) -> None:
        self.root, self.home = root, Home(home or root / "home")
        self.folder = root / "work"
        self.folder.mkdir(exist_ok=True)
        if settings:
            self.home.create().settings_file.write_text(settings)
        hidden = {"HOPYARD_URL", "HOPYARD_TOKEN", "VIRTUAL_ENV", "CONDA_PREFIX"}
        self.environment = {k: v for k, v in os.environ.items() if k not in hidden} | {
            "HOPYARD_HOME": str(self.home.root),
            "COLUMNS": "200",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    # -- what a user does ------------------------------------------------------------------------------------

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def hop(
        self, *words: str, cwd: Path | None = None, plain: bool = False, **environment: str
    ) -> CommandResult:
        """plain: without the capabilities of root to read and write all files."""
        result = subprocess.run(
            [HOP, *words],
            cwd=cwd or self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
            preexec_fn=_drop_file_capabilities if plain else None,
        )
        return CommandResult(
            result.returncode, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
        )

    def ok(self, *words: str) -> CommandResult:
        result = self.hop(*words)
        assert result.code == 0, (words, result.stdout, result.stderr)
        return result

    def start_hop(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts a command that runs in parallel with the test."""
        child = subprocess.Popen(
            [HOP, *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(child)
        return child

    @staticmethod
    def finish(child: subprocess.Popen[bytes]) -> CommandResult:
        stdout, err = child.communicate(timeout=DEADLINE_S)
        return CommandResult(child.returncode, stdout.decode(errors="replace"), err.decode(errors="replace"))

    def run_detached(self, *words: str) -> str:
        """Submit a run and return its name."""
        return self.ok("run", "--detach", *words).stdout.strip()

    # -- what is there ---------------------------------------------------------------------------------------

    def client(self) -> Client:
        """Returns a client of the running server, which is started if necessary."""
        return connect(home=self.home)

    def retry_while_unavailable(self, question: Callable[[Client], Result]) -> Result:
        """Retries a request while the server is being killed."""

        def answer() -> list[Result]:
            try:
                return [question(self.client())]
            except ServerUnavailable:
                return []

        return wait_until(answer, "an answer")[0]

    def get(self, path: str, **query: str | int) -> Any:
        return self.retry_while_unavailable(lambda client: client.get(path, **query))

    def run(self, ref: str) -> Any:
        result = self.get("/runs/resolve", ref=ref)
        return self.get(f"/runs/{result['id']}")

    def wait_for_phase(self, ref: str, *phases: str, attempt: int = 0) -> Any:
        """Waits until the run is in one of these phases, in this attempt or a later one, and returns the
        run."""
        run_id = self.get("/runs/resolve", ref=ref)["id"]

        def there() -> Any:
            result = self.get(f"/runs/{run_id}")
            number = (result["attempt"] or {"number": 0})["number"]
            assert result["phase"] not in FINAL or result["phase"] in phases, result
            return result if result["phase"] in phases and number >= attempt else None

        return wait_until(there, f"{ref} being {' or '.join(phases)}")

    def log(self, run: Any, stream: str = "stdout", rank: int = 0) -> str:
        def read(client: Client) -> str:
            with client.open(
                "GET", f"/runs/{run['id']}/log", query={"stream": stream, "rank": rank}
            ) as response:
                return response.read().decode(errors="replace")

        return self.retry_while_unavailable(read)

    def wait_for_output(self, run: Any, words: str, rank: int = 0) -> None:
        """Waits until the script has written `words` to its stdout. Needs no server."""
        stdout = self.replica(run, rank) / "streams" / "stdout"
        wait_until(
            lambda: stdout.exists() and words.encode() in stdout.read_bytes(),
            f"{words!r} on the stdout of {run['name']}",
        )

    def metric_series(self, run: Any, name: str) -> tuple[list[int], list[float]]:
        result = self.get(f"/runs/{run['id']}/metrics", names=name)["series"].get(name) or {
            "steps": [],
            "values": [],
        }
        return result["steps"], result["values"]

    def replica(self, run: Any, rank: int = 0) -> Path:
        """Returns the folder of a replica of the newest attempt."""
        return self.home.attempts / run["attempt"]["id"] / str(rank)

    def replica_status(self, run: Any, rank: int = 0) -> Any:
        """Returns the status file of the replica once its script runs."""

        def running() -> Any:
            try:
                status = json.loads((self.replica(run, rank) / "status.json").read_bytes())
            except (OSError, ValueError):
                return None
            return status if status["child_pid"] else None

        return wait_until(running, "a running script")

    # -- what happens to it ----------------------------------------------------------------------------------

    def server_pid(self) -> int:
        server_info = self.home.read_server()
        assert server_info is not None
        return int(server_info["pid"])

    def kill_server(self) -> int:
        """Kills the server with SIGKILL, waits for its end, and returns its pid."""
        pid = self.server_pid()
        if pid:
            kill(pid)
        return pid

    def processes(self) -> list[psutil.Process]:
        """Returns all processes of this home: the server, the spawner, replicas and scripts, but not the
        commands of the test."""
        mark, processes = str(self.home.root), []
        own = {os.getpid(), *(child.pid for child in self._started)}  # commands have the variable too
        for process in psutil.process_iter():
            try:
                if process.pid in own or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                variables = process.environ()
                if variables.get("HOPYARD_HOME") == mark or variables.get(
                    "HOPYARD_REPLICA_DIR", ""
                ).startswith(mark + "/"):
                    processes.append(process)
            except psutil.Error:
                continue
        return processes

    def kill_everything(self) -> int:
        """Kills all processes as a power failure does: all are stopped first, so that none sees the end of
        another. Returns their number."""
        killed: set[int] = set()
        while remaining := [p for p in self.processes() if p.pid not in killed]:
            for process in remaining:
                _signal(process.pid, signal.SIGSTOP)
                killed.add(process.pid)
        for pid in killed:
            _signal(pid, signal.SIGKILL)
        for pid in killed:
            wait_until(lambda pid=pid: has_ended(pid), "the end of a killed process")  # type: ignore[misc]
        return len(killed)

    def end(self) -> None:
        """Ends all remaining processes."""
        for child in self._started:
            if child.poll() is None:
                child.kill()
            child.communicate()
        self.kill_everything()
        for spec in self.home.attempts.glob("*/*/spec.json"):
            for group in json.loads(spec.read_bytes())["node"]["cgroups"].values():
                with suppress(OSError):  # as after a reboot, when the kernel has no such groups
                    Path(group).rmdir()


def kill(pid: int) -> None:
    """Kills the process with SIGKILL and waits for its end."""
    _signal(pid, signal.SIGKILL)
    wait_until(lambda: has_ended(pid), "the end of a killed process")


def has_ended(pid: int) -> bool:
    """Returns true also for a zombie process. Its sockets are closed once its last thread has ended."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def submit(server_home: ServerHome, command: Sequence[str], **spec: Any) -> Any:
    """Submits a run that the command line cannot describe. The id is created here, as `hop run` does, so that
    the request can be repeated."""
    from datetime import UTC, datetime

    from hopyard.domain.ids import new_run_id

    role = {
        "command": list(command),
        "resources": spec.pop("resources", {"cpu_milli": 100}),
        "replicas": spec.pop("replicas", 1),
    }
    body = {
        "id": new_run_id(datetime.now(UTC), os.urandom(7)),
        "spec": {"project": "work", "roles": [role], **spec},
    }
    return server_home.retry_while_unavailable(lambda client: client.post("/runs", body))


def expect_error(call: Callable[[], Any]) -> HopyardError:
    """Returns the error that a call raises."""
    try:
        result = call()
    except HopyardError as error:
        return error
    raise AssertionError(f"it was not refused: {result!r}")


def _drop_file_capabilities() -> None:
    """Runs between fork and exec: root without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH is subject to file
    modes like any user."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
