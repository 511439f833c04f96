"""The local engine passes the contract, with cgroups where this machine lets us and by watching alone."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from hopyard.testing.engine_contract import EngineContract, EngineFixture
from tests.engines.local.engine_fixture import open_local_engine


class TestLocalEngine(EngineContract):
    def open_fixture(self, folder: Path) -> AbstractAsyncContextManager[EngineFixture]:
        return open_local_engine(folder)


class TestLocalEngineWithoutCgroups(EngineContract):
    def open_fixture(self, folder: Path) -> AbstractAsyncContextManager[EngineFixture]:
        return open_local_engine(folder, use_cgroups=False)
