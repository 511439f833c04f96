from __future__ import annotations

import pytest

from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.queues import MemoryQueueStore, MemoryReservationStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import State
from hopyard.testing.cluster_store_cases import LifeCases, LossCases, PlanCases, StopCases
from hopyard.testing.run_store_cases import CreateCases, ListCases, RecordCases
from hopyard.testing.stores import ClusterStores


@pytest.mark.anyio
class TestMemory(CreateCases, ListCases, RecordCases, PlanCases, LifeCases, LossCases, StopCases):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def stores(self) -> ClusterStores:
        state = State()
        return ClusterStores(MemoryRunStore(state), MemoryClusterStore(state), MemoryQueueStore(state), MemoryReservationStore(state))
