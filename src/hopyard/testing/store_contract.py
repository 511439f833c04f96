"""The conformance suites of stores."""

from __future__ import annotations

import pytest

from hopyard.testing.audit_store_cases import AuditCases
from hopyard.testing.change_cases import ChangeCases
from hopyard.testing.cluster_store_cases import LifeCases, LossCases, PlanCases, StopCases
from hopyard.testing.command_store_cases import CommandCases
from hopyard.testing.dataset_store_cases import AccessCases, DatasetCases
from hopyard.testing.history_cases import HistoryCases
from hopyard.testing.lease_cases import LeaseCases
from hopyard.testing.node_cases import NodeCases
from hopyard.testing.notification_store_cases import NotificationCases
from hopyard.testing.phase_cases import PhaseCases
from hopyard.testing.plan_cases import CheckCases, PromiseCases, QuotaCases, SnapshotCases
from hopyard.testing.preempt_cases import PreemptCases
from hopyard.testing.queue_store_cases import QueueCases
from hopyard.testing.reservation_store_cases import ReservationCases
from hopyard.testing.run_mark_cases import RunMarkCases
from hopyard.testing.run_store_cases import CreateCases, EndCases, ListCases, RecordCases
from hopyard.testing.saved_view_store_cases import SavedViewCases
from hopyard.testing.session_store_cases import SessionCases
from hopyard.testing.timeline_cases import TimelineCases
from hopyard.testing.usage_store_cases import UsageCases


@pytest.mark.anyio
class ClusterStoreContract(
    CreateCases,
    ListCases,
    RecordCases,
    EndCases,
    RunMarkCases,
    SnapshotCases,
    PlanCases,
    CheckCases,
    QuotaCases,
    PromiseCases,
    LifeCases,
    LossCases,
    StopCases,
    PreemptCases,
    PhaseCases,
    NotificationCases,
    ChangeCases,
    HistoryCases,
    NodeCases,
    LeaseCases,
    QueueCases,
    ReservationCases,
    UsageCases,
    TimelineCases,
    CommandCases,
):
    """Everything that scheduling needs.

    Subclass it as `class TestX(ClusterStoreContract)` and provide a fixture `stores`: a
    `testing.stores.ClusterStores` with an empty state, new for every test. Cases are coroutines; pytest runs
    them with the plugin of anyio.
    """

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"


class StoreContract(
    ClusterStoreContract, DatasetCases, AccessCases, AuditCases, SessionCases, SavedViewCases
):
    """A whole database. Its fixture `stores` is a `testing.stores.Stores`."""
