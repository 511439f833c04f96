"""Messages are built when they are read, and equal those built at once."""

from __future__ import annotations

from hypothesis import given, settings

from hopyard.scheduler.placement.capacity import Capacity
from tests.scheduler.cluster_model import ClusterModel, cluster_models


@settings(max_examples=60)
@given(cluster_models(reserved=False))
def test_reason_equals_the_reason_of_the_message(cluster: ClusterModel) -> None:
    capacity = Capacity.of(
        cluster.nodes.values(), [running.placement for running in cluster.running.values()]
    )
    for gang in cluster.pending.values():
        if capacity.place(gang) is None:
            reason, detail = capacity.why_not(gang)
            assert capacity.why_not_reason(gang) is reason
            later = capacity.copy().why_not_message(gang)
            for running in cluster.running.values():
                capacity.release(running.placement)
            assert later() == detail
            for running in cluster.running.values():
                capacity.allocate(running.placement)
