"""The tree of queues, in SQL."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from hopyard.domain.effective_limits import child_queues
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import PastUsage, QueueTree
from hopyard.domain.run import RunPhase
from hopyard.errors import Conflict
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.history_rows import past_usage_since
from hopyard.stores.sql.queue_rows import read_tree, write_tree
from hopyard.stores.sql.tables import runs
from hopyard.stores.sql.versions import WriteStamp

_SELECT_PENDING_COUNTS = (
    select(runs.c.queue, func.count()).where(runs.c.phase == str(RunPhase.QUEUED)).group_by(runs.c.queue)
)


class SqlQueueStore:
    """QueueStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tree(self) -> QueueTree:
        return await self._database.read(read_tree)

    async def replace(self, tree: QueueTree, /) -> None:
        def write(conn: Connection) -> None:
            before = read_tree(conn)
            if before == tree:
                return
            _check_no_stranded_runs(tree, _count_pending(conn), before=before)
            write_tree(conn, tree)
            stamp = WriteStamp(conn)
            stamp.touch("queues")
            stamp.write()

        await self._database.write(write)

    async def count_waiting(self) -> Mapping[QueueName, int]:
        return await self._database.read(_count_pending)

    async def past_usage(self) -> Mapping[tuple[QueueName, str], PastUsage]:
        return await self._database.read(lambda conn: past_usage_since(conn, -1))


def _count_pending(conn: Connection) -> dict[QueueName, int]:
    return {QueueName(queue): count for queue, count in conn.execute(_SELECT_PENDING_COUNTS)}


def _check_no_stranded_runs(tree: QueueTree, waiting: Mapping[QueueName, int], *, before: QueueTree) -> None:
    """Raises Conflict if a queue with waiting runs would be removed, or would get children."""
    children = child_queues(tree)
    stranded = sorted(
        queue
        for queue in waiting
        if (queue not in tree.queues and queue in before.queues) or queue in children
    )
    if stranded:
        counts = ", ".join(f"{queue} ({waiting[queue]})" for queue in stranded[:5])
        hint = (
            f"move the runs (`hop update --from-queue {stranded[0]} --queue QUEUE`), stop them, or keep "
            "these queues until they have started"
        )
        raise Conflict(f"runs wait in queues that are not leaves of the new tree: {counts}", hints=(hint,))
