from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.local.bench import LocalBench, local_bench

Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scenario against a local engine with real spawner, replicas and processes."""

    def run(scenario: Callable[[LocalBench], Awaitable[None]], **options: Any) -> None:
        async def whole() -> None:
            async with local_bench(tmp_path, **options) as bench:
                await scenario(bench)

        asyncio.run(whole())

    return run
