"""Cases of nodes: reports of engines and changes by administrators."""

from __future__ import annotations

import pytest

from hopyard.domain.cluster import Node, Observation, ServerRecord
from hopyard.domain.gang import ANY_NODE, NodeSelector
from hopyard.domain.ids import NodeId, PoolName
from hopyard.domain.resources import Gpu, Resources
from hopyard.errors import Conflict, NotFound
from hopyard.testing.stores import (
    ENGINE,
    GIB,
    ClusterStores,
    apply_placements,
    exited_status,
    make_node,
    make_placement,
    pending_gang,
    record_observation,
    start_run,
    started_run,
    submit_run,
    time_at,
)


class NodeCases:
    """Nodes are cordoned, lost, removed and validated."""

    async def test_no_run_starts_on_cordoned_node(self, stores: ClusterStores) -> None:
        _, attempt = await started_run(stores)
        waiting_run = await submit_run(stores)
        before = (await stores.cluster.snapshot(now=time_at(0))).version
        cordoned = await stores.cluster.set_cordon(NodeId("n1"), True, reason="new fans")
        assert (cordoned.cordoned, cordoned.cordon_reason, cordoned.schedulable) == (True, "new fans", False)
        after = await stores.cluster.snapshot(now=time_at(1))
        assert after.version > before
        assert after.nodes[NodeId("n1")].cordoned
        assert [running.attempt for running in after.running] == [attempt]
        result = await apply_placements(stores, make_placement(pending_gang(after, waiting_run.id), "n1"))
        assert "cordoned" in result.rejected[pending_gang(after, waiting_run.id).id]
        # a report of its engine does not uncordon it
        await record_observation(stores, exited_status(attempt), nodes=[make_node(cpus=3)], seconds=2)
        assert list(await stores.cluster.nodes()) == [
            make_node(cpus=3, cordoned=True, cordon_reason="new fans")
        ]
        await record_observation(stores, nodes=[], seconds=3)
        assert list(await stores.cluster.nodes()) == [
            make_node(cpus=3, cordoned=True, cordon_reason="new fans", ready=False)
        ]
        await record_observation(stores, nodes=[make_node(cordoned=True)], seconds=3)
        assert await stores.cluster.set_cordon(NodeId("n1"), False) == make_node()
        await start_run(stores, waiting_run.id, seconds=4)

    async def test_newest_record_of_server_is_stored(self, stores: ClusterStores) -> None:
        assert list(await stores.cluster.servers()) == []
        second = ServerRecord("b", "two:/home", time_at(1), "http://two:1", "ab")
        for server in (
            ServerRecord("b", "one:/home", time_at(0)),
            ServerRecord("a", "one:/other", time_at(0)),
            second,
        ):
            await stores.cluster.record_server(server)
        assert list(await stores.cluster.servers()) == [ServerRecord("a", "one:/other", time_at(0)), second]

    async def test_server_record_is_removed_with_last_node(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node("n1")])
        await record_observation(stores, nodes=[], seconds=1)
        for engine in (ENGINE, "other"):
            await stores.cluster.record_server(ServerRecord(engine, "one:/home", time_at(0)))
        await stores.cluster.remove_node(NodeId("n1"))
        assert [server.engine for server in await stores.cluster.servers()] == ["other"]

    async def test_cordon_reason_stays_until_replaced_or_uncordoned(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        for on, reason, expected in (
            (True, "new fans", "new fans"),
            (True, "", "new fans"),
            (True, "dust", "dust"),
            (False, "", ""),
            (True, "", ""),
        ):
            node = await stores.cluster.set_cordon(NodeId("n1"), on, reason=reason)
            assert (node.cordoned, node.cordon_reason) == (on, expected)
            assert [stored.cordon_reason for stored in await stores.cluster.nodes()] == [expected]

    async def test_unknown_node_is_reported_with_close_names(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node("gpu-01")])
        with pytest.raises(NotFound, match="gpu-0l") as raised:
            await stores.cluster.set_cordon(NodeId("gpu-0l"), True)
        assert any("gpu-01" in hint for hint in raised.value.hints)
        with pytest.raises(NotFound):
            await stores.cluster.remove_node(NodeId("missing"))

    async def test_lost_node_is_kept_until_removed(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        with pytest.raises(Conflict):
            await stores.cluster.remove_node(NodeId("n1"))  # it is still reported
        await record_observation(stores, nodes=[make_node("n2")], seconds=1)
        with pytest.raises(Conflict):
            await stores.cluster.remove_node(NodeId("n1"))  # a starting attempt uses it
        await stores.cluster.fail_launch(attempt, "its node is gone", now=time_at(2))
        before = await stores.cluster.version()
        await stores.cluster.record_server(ServerRecord(ENGINE, "one:/home", time_at(0)))
        await stores.cluster.remove_node(NodeId("n1"))
        after = await stores.cluster.snapshot(now=time_at(3))
        assert after.version == await stores.cluster.version() > before
        assert list(after.nodes) == ["n2"]
        assert [server.engine for server in await stores.cluster.servers()] == [ENGINE], "it has another node"
        assert (
            "n1"
            in (
                await apply_placements(stores, make_placement(pending_gang(after, run), "n1"), seconds=3)
            ).rejected[after.pending[0].id]
        )
        await record_observation(stores, nodes=[make_node(), make_node("n2")], seconds=4)
        await start_run(stores, run, "n1", seconds=5)

    async def test_invalid_node_amounts_are_corrected(self, stores: ClusterStores) -> None:
        cards = (Gpu(0, "A100", -5), Gpu(0, "T4"), Gpu(-1, "T4"), Gpu(1, "", 40 * GIB), Gpu(2, "H100", 2**80))
        invalid = Node(NodeId("liar"), ENGINE, -4000, 2**90, cards, extras={"fpga": -1, "licence": 3})
        await stores.cluster.record_observation(ENGINE, Observation((invalid,)), now=time_at(0))
        (stored,) = await stores.cluster.nodes()
        assert (stored.cpu_milli, stored.memory_bytes, dict(stored.extras)) == (
            0,
            0,
            {"fpga": 0, "licence": 3},
        )
        assert [(gpu.index, gpu.memory_bytes) for gpu in stored.gpus] == [(0, 0), (1, 40 * GIB), (2, 0)]
        assert all(gpu.model for gpu in stored.gpus)
        version = (await stores.cluster.snapshot(now=time_at(1))).version
        await stores.cluster.record_observation(ENGINE, Observation((invalid,)), now=time_at(1))
        assert (await stores.cluster.snapshot(now=time_at(1))).version == version

    async def test_node_shrinks_below_allocations(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=2)])
        runs = [await submit_run(stores, resources=Resources(2000, GIB, 1)) for _ in range(3)]
        attempts = [await start_run(stores, run.id, ("n1", (index,))) for index, run in enumerate(runs[:2])]
        await record_observation(stores, nodes=[make_node(cpus=1, gpus=1)], seconds=1)
        snapshot = await stores.cluster.snapshot(now=time_at(1))
        assert len(snapshot.running) == 2
        third = pending_gang(snapshot, runs[2].id)
        assert (await apply_placements(stores, make_placement(third, ("n1", (0,))), seconds=1)).applied == ()
        await stores.cluster.record_status(exited_status(attempts[0]), now=time_at(2))
        assert (
            await apply_placements(stores, make_placement(third, ("n1", (0,))), seconds=2)
        ).applied == ()  # the other run holds more CPUs than the node has
        await record_observation(stores, nodes=[make_node(gpus=2)], seconds=3)
        assert (await apply_placements(stores, make_placement(third, ("n1", (0,))), seconds=3)).applied == (
            third.id,
        )

    @pytest.mark.parametrize(
        ("where", "fits"),
        [
            (ANY_NODE, True),
            (NodeSelector((PoolName("big"), PoolName("small"))), True),
            (NodeSelector((PoolName("big"),)), False),
            (NodeSelector(labels=(("zone", "a"),)), True),
            (NodeSelector(labels=(("rack", "1"), ("zone", "a"))), False),
        ],
    )
    async def test_run_starts_only_on_selected_nodes(
        self, stores: ClusterStores, where: NodeSelector, fits: bool
    ) -> None:
        await record_observation(stores, nodes=[make_node(pool=PoolName("small"), labels={"zone": "a"})])
        run = await submit_run(stores, where=where)
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        gang = pending_gang(snapshot, run.id)
        assert gang.roles[0].where == where
        assert bool((await apply_placements(stores, make_placement(gang, "n1"))).applied) is fits
