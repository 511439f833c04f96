from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.local.engine_fixture import LocalEngineFixture, open_local_engine

RunScenario = Callable[..., None]


@pytest.fixture
def run_scenario(tmp_path: Path) -> RunScenario:
    """Run a scenario against a local engine with real spawner, replicas and processes."""

    def run(scenario: Callable[[LocalEngineFixture], Awaitable[None]], **options: Any) -> None:
        async def whole() -> None:
            async with open_local_engine(tmp_path, **options) as fixture:
                await scenario(fixture)

        asyncio.run(whole())

    return run
