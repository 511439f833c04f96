"""The part of the server's environment that reaches a run's processes, and its record."""

from __future__ import annotations

import json

import psutil
import pytest

from hopyard.domain.run_environment import RANK_VARIABLES
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

SHOWS = """
import json, os, time
print(json.dumps(dict(os.environ)))
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def test_run_environment_is_defined_and_recorded(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNER_AWS_SECRET", "topsecret")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://owner:INDEXPASSWORD@127.0.0.1:1/simple/")
    monkeypatch.setenv("TZ", "UTC")

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", SHOWS)
        replica = psutil.Process((await fixture.wait_until_running("a.1")).pid)
        assert "topsecret" not in str(replica.environ()), "nor can it be read from the replica beside it"
        (fixture.folder("a.1") / "work" / "go").touch()
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        mine = json.loads(fixture.sink.stream("a.1", 0, "stdout"))
        assert not mine.keys() & RANK_VARIABLES, "a script that finds RANK takes itself for a part of a gang"
        assert (mine["NCCL_DEBUG"], mine["TZ"]) == ("WARN", "UTC")
        assert not {"OWNER_AWS_SECRET", "UV_DEFAULT_INDEX", "PWD", "OLDPWD"} & mine.keys()
        events = [json.loads(line) for line in fixture.sink.stream("a.1", 0, "events").splitlines()]
        (values,) = [event["values"] for event in events if event["kind"] == "environment"]
        assert (
            values["NCCL_DEBUG"] is None
            and values["TZ"] == "UTC"
            and values["PATH"]
            and "INDEXPASSWORD" not in json.dumps(events)
        )

    run_scenario(scenario, pass_environment=("NCCL_*",))
