"""Idle runs end, by the samples and connections that the server has."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hopyard.domain.ids import RunId
from hopyard.errors import ServerUnavailable
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.server.idle_watch import IdleWatch
from hopyard.server.run_connections import RunConnections
from tests.server.api_server import ApiServer, role, run_scenario


@dataclass
class AdvancedClock:
    """A clock that the test advances."""

    ahead: timedelta = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    async def sleep_until(self, when: datetime, /) -> None:
        raise AssertionError(when)


@dataclass
class BrokenStreams:
    """Streams of which those of one run cannot be read."""

    streams: Streams
    broken: RunId

    async def list(self, run: RunId, /) -> list[StreamKey]:
        if run == self.broken:
            raise ServerUnavailable("the disk is busy", retry_after_s=1)
        return list(await self.streams.list(run))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.streams, name)


def test_only_idle_runs_end(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        clock = AdvancedClock()
        services = replace(api.services, connections=RunConnections(clock.now))
        clock.ahead = timedelta(hours=2)
        now = clock.now().timestamp()
        cpu_by_name = {
            "idle": [(now - 7000, 90.0), (now - 2, 1.0)],
            "works": [(now - 7000, 1.0), (now - 100, 90.0), (now - 2, 1.0)],
            "unlimited": [(now - 2, 1.0)],
            "connected": [(now - 2, 1.0)],
            "unreadable": [(now - 2, 1.0)],  # the newest, which is looked at first
        }
        runs: dict[str, Any] = {}
        for name, samples in cpu_by_name.items():
            limits = {} if name == "unlimited" else {"idle_s": 3600.0}
            runs[name] = await api.start_run(roles=[role(cpu_milli=100)], **limits)
            lines = [{"t": at, "cpu_percent": cpu, "memory_bytes": 1, "gpus": []} for at, cpu in samples]
            data = "".join(json.dumps(line) + "\n" for line in lines).encode()
            await api.sync(runs[name], [("system", 0, data)])
        streams: Any = BrokenStreams(services.streams, RunId(runs["unreadable"]["id"]))
        services = replace(services, streams=streams)
        with services.connections.connected(RunId(runs["connected"]["id"])):
            await IdleWatch(services, clock).check()
        phases = {
            name: (await api.request("GET", f"/runs/{run['id']}"))["stop_requested"]
            for name, run in runs.items()
        }
        assert [name for name, is_stopped in phases.items() if is_stopped] == ["idle"]
        order = api.services.controller.stop_order(api.engine.launches[f"{runs['idle']['id']}.1"].attempt)
        assert order.reason.startswith("idle for 1 h")

    run_scenario(tmp_path, scenario)
