from __future__ import annotations

import pytest

from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.commands import MemoryCommandStore
from hopyard.stores.memory.notifications import MemoryNotificationStore
from hopyard.stores.memory.queues import MemoryQueueStore, MemoryReservationStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState
from hopyard.stores.memory.usage import MemoryUsageStore
from hopyard.testing.store_contract import ClusterStoreContract
from hopyard.testing.stores import ClusterStores


class TestMemory(ClusterStoreContract):
    @pytest.fixture
    def stores(self) -> ClusterStores:
        state = MemoryState()
        return ClusterStores(
            MemoryRunStore(state),
            MemoryClusterStore(state),
            MemoryQueueStore(state),
            MemoryReservationStore(state),
            MemoryUsageStore(state),
            MemoryCommandStore(state),
            MemoryNotificationStore(state),
        )
