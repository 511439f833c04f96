"""A local engine on a home in a temporary folder, with real spawner, replicas and processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.home import Home
from hopyard.domain.replica import ReplicaState
from hopyard.engines.local.engine import LocalEngine
from hopyard.engines.local.node_detection import LocalNodeSettings
from hopyard.engines.local.replica_folder import ReplicaFolder, replica_folders
from hopyard.replica.resource_limits import ReplicaCgroups
from hopyard.testing.engine_contract import EngineFixture
from hopyard.testing.fake_server import FakeServer

SPAWNER = (sys.executable, "-m", "hopyard.replica.spawner")


@dataclass(slots=True)
class LocalEngineFixture(EngineFixture):
    home: Home = Home(Path("/nonexistent"))
    use_cgroups: bool = True
    pass_environment: tuple[str, ...] = ()
    namespaces: bool = True

    def new_engine(self, *, adopt: bool = True, nodes: Sequence[LocalNodeSettings] = ()) -> LocalEngine:
        """Another engine on the same home."""
        return LocalEngine(
            self.home,
            server_url=lambda: self.sink.url,
            spawner_command=SPAWNER,
            use_cgroups=self.use_cgroups,
            adopt_replicas=adopt,
            nodes=nodes,
            pass_environment=self.pass_environment,
            namespaces=self.namespaces,
        )

    def folder(self, attempt: str, rank: int = 0) -> Path:
        return self.home.attempts / attempt / str(rank)

    def state(self, attempt: str, rank: int = 0) -> ReplicaState | None:
        return ReplicaFolder(self.folder(attempt, rank)).read_state()

    async def wait_until_running(self, attempt: str, rank: int = 0) -> ReplicaState:
        """Wait until the user's process has started."""
        return await self.wait_for_state(attempt, lambda state: state.child_pid > 0, rank)

    async def wait_for_state(
        self, attempt: str, condition: Callable[[ReplicaState], bool], rank: int = 0
    ) -> ReplicaState:
        while True:
            state = self.state(attempt, rank)
            if state is not None and condition(state):
                return state
            await self.observe_until(lambda _: True)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def open_local_engine(
    folder: Path,
    *,
    use_cgroups: bool = True,
    nodes: Sequence[LocalNodeSettings] = (),
    pass_environment: tuple[str, ...] = (),
    namespaces: bool = True,
) -> AsyncIterator[LocalEngineFixture]:
    home = Home(folder / "home").create()
    with FakeServer() as sink:
        sink.serve_home(home)
        fixture = LocalEngineFixture(
            None,
            sink,
            lambda: sink.serve_home(home),
            home=home,
            use_cgroups=use_cgroups,
            pass_environment=pass_environment,
            namespaces=namespaces,
        )  # type: ignore[arg-type]
        fixture.engine = engine = fixture.new_engine(nodes=nodes)
        try:
            yield fixture
        finally:
            await _end_all(home)
            await engine.close()


async def _end_all(home: Home) -> None:
    """Nothing that a test started outlives it."""
    if not home.attempts.exists():
        return
    for attempt in home.attempts.iterdir():
        for replica in replica_folders(attempt):
            state = replica.read_state()
            while replica.is_alive():
                replica.signal(signal.SIGKILL)
                await asyncio.sleep(0.005)
            if state is not None and state.child_pid > 0 and state.exit is None:
                with suppress(ProcessLookupError):
                    os.killpg(state.child_pid, signal.SIGKILL)
            spec = replica.read_spec()
            if spec is not None:
                ReplicaCgroups.existing(spec.node).remove()
