"""The cheap reason why a gang does not fit is that of the full cause."""

from __future__ import annotations

from hypothesis import given, settings

from hopyard.scheduler.placement.capacity import Capacity
from tests.scheduler.cluster_model import ClusterModel, cluster_models


@settings(max_examples=60)
@given(cluster_models(reserved=False))
def test_reason_equals_the_reason_of_the_cause(cluster: ClusterModel) -> None:
    capacity = Capacity.of(
        cluster.nodes.values(), [running.placement for running in cluster.running.values()]
    )
    for gang in cluster.pending.values():
        if capacity.place(gang) is None:
            cause, copy = capacity.why_not(gang), capacity.copy()
            assert capacity.why_not_reason(gang) is cause.reason
            for running in cluster.running.values():
                capacity.release(running.placement)
            assert copy.why_not(gang) == cause
            for running in cluster.running.values():
                capacity.allocate(running.placement)
