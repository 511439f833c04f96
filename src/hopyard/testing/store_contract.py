"""The conformance suite of stores: every case that a database must pass to hold the platform's truth."""

from __future__ import annotations

import pytest

from hopyard.testing.cluster_store_cases import LifeCases, LossCases, PlanCases, StopCases
from hopyard.testing.dataset_store_cases import AccessCases, DatasetCases
from hopyard.testing.run_store_cases import CreateCases, EndCases, ListCases, RecordCases


@pytest.mark.anyio
class StoreContract(
    CreateCases, ListCases, RecordCases, EndCases, PlanCases, LifeCases, LossCases, StopCases, DatasetCases, AccessCases
):
    """Subclass it as `class TestX(StoreContract)` and give a fixture `stores`: a `testing.stores.Stores` over an empty
    database of its own, fresh for every test. Cases are coroutines; pytest runs them through the plugin of anyio."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"
