"""Nodes: what engines and administrators say of them."""

from __future__ import annotations

import pytest

from hopyard.domain.cluster import KnownServer, Node, Observation
from hopyard.domain.gang import ANYWHERE, Where
from hopyard.domain.ids import NodeId, PoolName
from hopyard.domain.resources import Gpu, Resources
from hopyard.errors import Conflict, NotFound
from hopyard.testing.stores import (
    ENGINE,
    GIB,
    ClusterStores,
    apply,
    at,
    exited,
    gang_of,
    node,
    place,
    see,
    start,
    started,
    submit,
)


class NodeCases:
    """Cordoned, lost, removed, and not believed blindly."""

    async def test_nothing_starts_on_a_cordoned_node(self, stores: ClusterStores) -> None:
        _, attempt = await started(stores)
        waits = await submit(stores)
        before = (await stores.cluster.snapshot(now=at(0))).version
        told = await stores.cluster.cordon(NodeId("n1"), True, reason="new fans")
        assert (told.cordoned, told.cordon_reason, told.open) == (True, "new fans", False)
        after = await stores.cluster.snapshot(now=at(1))
        assert after.version > before
        assert after.nodes[NodeId("n1")].cordoned
        assert [one.attempt for one in after.running] == [attempt]
        refused = await apply(stores, place(gang_of(after, waits.id), "n1"))
        assert "cordoned" in refused.rejected[gang_of(after, waits.id).id]
        # what its engine sees does not lift it
        await see(stores, exited(attempt), nodes=[node(cpus=3)], seconds=2)
        assert list(await stores.cluster.nodes()) == [node(cpus=3, cordoned=True, cordon_reason="new fans")]
        await see(stores, nodes=[], seconds=3)
        assert list(await stores.cluster.nodes()) == [
            node(cpus=3, cordoned=True, cordon_reason="new fans", ready=False)
        ]
        await see(stores, nodes=[node(cordoned=True)], seconds=3)
        assert await stores.cluster.cordon(NodeId("n1"), False) == node()
        await start(stores, waits.id, seconds=4)

    async def test_a_server_is_known_as_it_recorded_itself_last(self, stores: ClusterStores) -> None:
        assert list(await stores.cluster.servers()) == []
        second = KnownServer("b", "two:/home", at(1), "http://two:1", "ab")
        for server in (KnownServer("b", "one:/home", at(0)), KnownServer("a", "one:/other", at(0)), second):
            await stores.cluster.note_server(server)
        assert list(await stores.cluster.servers()) == [KnownServer("a", "one:/other", at(0)), second]

    async def test_a_server_is_forgotten_with_its_last_node(self, stores: ClusterStores) -> None:
        await see(stores, nodes=[node("n1")])
        await see(stores, nodes=[], seconds=1)
        for engine in (ENGINE, "other"):
            await stores.cluster.note_server(KnownServer(engine, "one:/home", at(0)))
        await stores.cluster.remove_node(NodeId("n1"))
        assert [server.engine for server in await stores.cluster.servers()] == ["other"]

    async def test_the_reason_stays_until_another_is_given_or_the_node_is_open_again(
        self, stores: ClusterStores
    ) -> None:
        await see(stores, nodes=[node()])
        for on, reason, kept in (
            (True, "new fans", "new fans"),
            (True, "", "new fans"),
            (True, "dust", "dust"),
            (False, "", ""),
            (True, "", ""),
        ):
            told = await stores.cluster.cordon(NodeId("n1"), on, reason=reason)
            assert (told.cordoned, told.cordon_reason) == (on, kept)
            assert [one.cordon_reason for one in await stores.cluster.nodes()] == [kept]

    async def test_the_name_of_no_node(self, stores: ClusterStores) -> None:
        await see(stores, nodes=[node("gpu-01")])
        with pytest.raises(NotFound, match="gpu-0l") as raised:
            await stores.cluster.cordon(NodeId("gpu-0l"), True)
        assert any("gpu-01" in hint for hint in raised.value.hints)
        with pytest.raises(NotFound):
            await stores.cluster.remove_node(NodeId("nobody"))

    async def test_a_lost_node_is_kept_until_it_is_removed(self, stores: ClusterStores) -> None:
        run, attempt = await started(stores)
        with pytest.raises(Conflict):
            await stores.cluster.remove_node(NodeId("n1"))  # it is there
        await see(stores, nodes=[node("n2")], seconds=1)
        with pytest.raises(Conflict):
            await stores.cluster.remove_node(NodeId("n1"))  # an attempt that starts holds some of it
        await stores.cluster.fail_launch(attempt, "its node is gone", now=at(2))
        before = await stores.cluster.version()
        await stores.cluster.note_server(KnownServer(ENGINE, "one:/home", at(0)))
        await stores.cluster.remove_node(NodeId("n1"))
        after = await stores.cluster.snapshot(now=at(3))
        assert after.version == await stores.cluster.version() > before
        assert list(after.nodes) == ["n2"]
        assert [server.engine for server in await stores.cluster.servers()] == [ENGINE], "it has another node"
        assert (
            "n1"
            in (await apply(stores, place(gang_of(after, run), "n1"), seconds=3)).rejected[
                after.pending[0].id
            ]
        )
        await see(stores, nodes=[node(), node("n2")], seconds=4)
        await start(stores, run, "n1", seconds=5)

    async def test_a_node_that_lies_is_put_right(self, stores: ClusterStores) -> None:
        cards = (Gpu(0, "A100", -5), Gpu(0, "T4"), Gpu(-1, "T4"), Gpu(1, "", 40 * GIB), Gpu(2, "H100", 2**80))
        liar = Node(NodeId("liar"), ENGINE, -4000, 2**90, cards, extras={"fpga": -1, "licence": 3})
        await stores.cluster.record(ENGINE, Observation((liar,)), now=at(0))
        (seen,) = await stores.cluster.nodes()
        assert (seen.cpu_milli, seen.memory_bytes, dict(seen.extras)) == (0, 0, {"fpga": 0, "licence": 3})
        assert [(gpu.index, gpu.memory_bytes) for gpu in seen.gpus] == [(0, 0), (1, 40 * GIB), (2, 0)]
        assert all(gpu.model for gpu in seen.gpus)
        version = (await stores.cluster.snapshot(now=at(1))).version
        await stores.cluster.record(ENGINE, Observation((liar,)), now=at(1))
        assert (await stores.cluster.snapshot(now=at(1))).version == version

    async def test_a_node_that_shrinks_under_what_runs_on_it(self, stores: ClusterStores) -> None:
        await see(stores, nodes=[node(gpus=2)])
        runs = [await submit(stores, resources=Resources(2000, GIB, 1)) for _ in range(3)]
        attempts = [await start(stores, run.id, ("n1", (card,))) for card, run in enumerate(runs[:2])]
        await see(stores, nodes=[node(cpus=1, gpus=1)], seconds=1)
        snapshot = await stores.cluster.snapshot(now=at(1))
        assert len(snapshot.running) == 2
        third = gang_of(snapshot, runs[2].id)
        assert (await apply(stores, place(third, ("n1", (0,))), seconds=1)).applied == ()
        await stores.cluster.record_status(exited(attempts[0]), now=at(2))
        assert (
            await apply(stores, place(third, ("n1", (0,))), seconds=2)
        ).applied == ()  # the other holds more CPUs than there are
        await see(stores, nodes=[node(gpus=2)], seconds=3)
        assert (await apply(stores, place(third, ("n1", (0,))), seconds=3)).applied == (third.id,)

    @pytest.mark.parametrize(
        ("where", "fits"),
        [
            (ANYWHERE, True),
            (Where((PoolName("big"), PoolName("small"))), True),
            (Where((PoolName("big"),)), False),
            (Where(labels=(("zone", "a"),)), True),
            (Where(labels=(("rack", "1"), ("zone", "a"))), False),
        ],
    )
    async def test_a_run_goes_only_where_it_asked_to(
        self, stores: ClusterStores, where: Where, fits: bool
    ) -> None:
        await see(stores, nodes=[node(pool=PoolName("small"), labels={"zone": "a"})])
        run = await submit(stores, where=where)
        snapshot = await stores.cluster.snapshot(now=at(0))
        gang = gang_of(snapshot, run.id)
        assert gang.roles[0].where == where
        assert bool((await apply(stores, place(gang, "n1"))).applied) is fits
