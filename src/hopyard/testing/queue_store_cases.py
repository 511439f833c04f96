"""Cases of every QueueStore."""

from __future__ import annotations

import pytest

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, SINGLE_QUEUE_TREE, Queue, QueueTree
from hopyard.errors import Conflict
from hopyard.testing.stores import (
    ClusterStores,
    make_node,
    record_observation,
    start_run,
    submit_run,
    time_at,
)

LAB, VISION, SPEECH = QueueName("lab"), QueueName("vision"), QueueName("speech")
TREE = QueueTree(
    {
        LAB: Queue(LAB, guarantee={CPU: 8000}, maximum={CPU: 16000}, admins=("ann",)),
        VISION: Queue(
            VISION,
            LAB,
            2.5,
            {CPU: 4000},
            submitters=("ann", "bob"),
            priorities=(10, 60),
            default_priority=20,
            time_slices=True,
            user_priorities={"ann": 90},
        ),
        SPEECH: Queue(
            SPEECH,
            LAB,
            lend_limit={CPU: 0},
            borrow_limit={CPU: 1000},
            user_limit={"gpu:a100": 2000},
            reclaims=False,
        ),
    },
    default=SPEECH,
    half_life_s=3600.0,
)


class QueueCases:
    """The declared tree."""

    async def test_tree_is_replaced_as_a_whole(self, stores: ClusterStores) -> None:
        assert await stores.queues.tree() == SINGLE_QUEUE_TREE
        before = await stores.cluster.snapshot(now=time_at(0))
        assert before.queues == SINGLE_QUEUE_TREE
        await stores.queues.replace(TREE)
        after = await stores.cluster.snapshot(now=time_at(1))
        assert await stores.queues.tree() == after.queues == TREE
        assert list(after.queues.queues) == [LAB, VISION, SPEECH]  # parents before children
        assert after.version > before.version
        await stores.queues.replace(SINGLE_QUEUE_TREE)
        assert await stores.queues.tree() == SINGLE_QUEUE_TREE

    async def test_waiting_runs_are_counted(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        await stores.queues.replace(TREE)
        runs = [await submit_run(stores, queue=queue) for queue in (VISION, VISION, SPEECH)]
        assert dict(await stores.queues.count_waiting()) == {VISION: 2, SPEECH: 1}
        await start_run(stores, runs[0].id)
        await stores.cluster.request_stop(runs[2].id, now=time_at(1))
        assert dict(await stores.queues.count_waiting()) == {VISION: 1}

    async def test_queue_with_waiting_runs_cannot_be_removed(self, stores: ClusterStores) -> None:
        await stores.queues.replace(TREE)
        run = await submit_run(stores, queue=VISION)
        without_queue = QueueTree({SPEECH: Queue(SPEECH)}, default=SPEECH)
        with_child = QueueTree({VISION: Queue(VISION), SPEECH: Queue(SPEECH, VISION)}, default=SPEECH)
        for tree in (without_queue, with_child):
            with pytest.raises(Conflict, match="vision"):
                await stores.queues.replace(tree)
            assert await stores.queues.tree() == TREE
        await stores.cluster.request_stop(run.id, now=time_at(1))
        await stores.queues.replace(without_queue)
        assert await stores.queues.tree() == without_queue
