"""The cache answers as the check itself, and is renewed when the nodes change."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.resources import Gpu
from hopyard.scheduler.placement.never_fits import never_fits
from tests.scheduler.placement.strategies import gangs, nodes
from tests.server.api_server import NODE, ApiServer, role, run_scenario


def test_cached_causes_are_those_of_the_nodes(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        cache = api.services.node_cache

        @given(st.lists(nodes(), min_size=2, max_size=2), st.lists(gangs(), min_size=1, max_size=4))
        @settings(max_examples=50, deadline=None)
        def check(clusters: list[Sequence[Node]], requested: list[Gang]) -> None:
            for cluster in (clusters[0], clusters[0], clusters[1], clusters[0]):
                for gang in requested:
                    assert cache.never_fits_cause(gang, cluster) == never_fits(gang, cluster)

        await asyncio.to_thread(check)

    run_scenario(tmp_path, scenario, loops=False)


def test_run_is_refused_until_a_larger_node_is_there(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for _ in range(2):
            refused = await api.submit(roles=[role(gpus=3)], status=400)
            assert refused["error"]["code"] == "does_not_fit"
        nodes = await api.services.node_cache.get()
        api.services.node_cache._valid_until = None
        assert await api.services.node_cache.get() is nodes, "equal nodes are the same object"
        api.engine.nodes = [dataclasses.replace(NODE, gpus=tuple(Gpu(index, "A100") for index in range(4)))]
        await api.start_run()  # the controller observes the engine again

        async def has_larger() -> bool:
            return any(len(node.gpus) == 4 for node in await api.services.node_cache.get())

        await api.wait_until(has_larger)
        assert (await api.submit(roles=[role(gpus=3)], plan=0))["id"]

    run_scenario(tmp_path, scenario)
