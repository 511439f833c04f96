"""Restarts of a process: its replica's metrics are read again, without the part that is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from tests.server.api_server import ApiServer, run_scenario


def point(name: str, step: int, value: float) -> bytes:
    return pack_point(POINT, series_id(name), step, 1.0, value)


def restarted(begin: int, end: int) -> bytes:
    event = {"t": 1_700_000_000.0, "kind": "restarted", "text": "worker-0 restarted"}
    return json.dumps({**event, "begins": {"metrics": begin}, "ends": {"metrics": end}}).encode() + b"\n"


@pytest.mark.parametrize("mode", ["on-failure", "never"])
def test_hidden_metrics_of_one_replica_disappear(tmp_path: Path, mode: str) -> None:
    """Without a restart policy, such a line of the script means nothing."""

    async def scenario(api: ApiServer) -> None:
        role = {"command": ["true"], "replicas": 2, "restart": {"mode": mode}}
        run = await api.start_run(roles=[role])
        attempt, run_id = AttemptId(f"{run['id']}.1"), RunId(run["id"])
        token = api.engine.launches[attempt].replicas[0].token  # type: ignore[index]
        names = pack_definition("loss") + pack_definition("accuracy")
        kept, hidden = names + point("loss", 1, 0.5), point("loss", 2, 9.0) + point("accuracy", 2, 0.1)

        async def sync(rank: int, *segments: tuple[str, int, bytes]) -> Any:
            return await api.sync(run, list(segments), token=token, rank=rank)

        async def stored() -> dict[str, tuple[int, float]]:
            await api.services.ingest.flush_all()
            return dict((await api.services.runs.latest_metrics([run_id]))[run_id])

        await sync(1, ("metrics", 0, names + point("accuracy", 2, 0.8)))
        await sync(0, ("metrics", 0, kept + hidden))
        before = {"loss": (2, 9.0), "accuracy": (2, 0.1)}
        assert await stored() == before
        other = api.services.ingest._replicas[attempt, 1]
        await sync(0, ("events", 0, restarted(len(kept), len(kept + hidden))))
        ignored = mode == "never"
        assert await stored() == (before if ignored else {"loss": (1, 0.5), "accuracy": (2, 0.8)})
        assert api.services.ingest._replicas[attempt, 1] is other, "its streams are not read again"
        shown = await api.request("GET", f"/runs/{run['id']}")
        details = [each["detail"] for each in shown["events"] if each["kind"] == "restarted"]
        assert details == ([] if ignored else ["worker-0 restarted"])
        await sync(0, ("metrics", len(kept + hidden), point("loss", 2, 0.4)))
        assert (await stored())["loss"] == (2, 0.4)

    run_scenario(tmp_path, scenario)
