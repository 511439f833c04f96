"""Where units are done: a state comes from the shelf, is trained or evaluated, and goes back to it.
Times are taken here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from hopyard.datasets.partitions.partition import Partition
from hopyard.domain.ids import WorkerId
from hopyard.errors import SpecError
from hopyard.studies.messages import Evaluate, Evaluated, Finished, Train
from hopyard.studies.states import chance
from hopyard.studies.states.shelf import Shelf
from hopyard.studies.trainable.config import Config
from hopyard.studies.trainable.protocol import Trainable
from hopyard.studies.worker import unit
from hopyard.studies.worker.ahead import Ahead, Aside
from hopyard.studies.worker.group import First, Meetings, Other
from hopyard.studies.worker.opening import Opened
from hopyard.studies.worker.watch import Watched

Stop = Callable[[str], None]
"""Given the unit. Raises Cancelled where it was."""
Progressed = Callable[[str, float, float], None]
"""Given the unit, seconds since it began, the share that is done."""


class Group(Protocol):
    def reduce(self, arrays: Any) -> list[Any]: ...

    def close(self) -> None: ...


class Made(NamedTuple):
    """What the last unit made. name: of the state; params: of its trial. generators: as training left them:
    the user's `capture`, or a thread of the user's, may draw from them after that, and whoever reads the
    state finds them so."""

    name: str
    params: Mapping[str, Any]
    state: Any
    generators: Mapping[str, Any]


class Bench:
    """Used by the thread that trains; `leave_group` by any. at_work: while the user's code runs."""

    def __init__(
        self,
        shelf: Shelf,
        ahead: Ahead,
        aside: Aside,
        meetings: Meetings,
        secret: bytes,
        stop: Stop,
        progressed: Progressed,
        *,
        foreign: bool = False,
    ) -> None:
        """foreign: as of `decode`, for the states that it is given."""
        self._shelf, self._ahead, self._aside = shelf, ahead, aside
        self._meetings, self._secret, self._stop, self._progressed = meetings, secret, stop, progressed
        self._foreign = foreign
        self._group: Group | None = None
        self._made: Made | None = None
        self.at_work = threading.Event()

    def train(self, trainable: Trainable, order: Train, me: WorkerId, opened: Opened) -> Finished:
        """Raises Cancelled, GroupBroken, StateLacking, StorageFull, and whatever the user's code raises."""
        arrived = time.perf_counter()
        index = next((at for at, member in enumerate(order.members) if member.worker == me), None)
        if index is None:
            raise SpecError(f"worker {me} is no member of unit {order.unit}")
        config = Config(dict(order.params), order.trial, order.seed, order.epoch, order.budget)
        partition = self._partition(opened, "train", order.members[index].partition, order.unit)
        state, fetched = self._state(trainable, order, config)
        fetch_s = time.perf_counter() - arrived
        self.at_work.set()
        began_at, clock = time.time(), time.perf_counter()
        if len(order.members) == 1:
            state = unit.train(trainable, state, partition, config)
        else:
            state = self._train_together(trainable, state, partition, config, order, index)
        trained = time.perf_counter()
        generators = chance.take()
        self.at_work.clear()
        ended_at = began_at + trained - clock
        self._stop(order.unit)
        size = self._shelf.put(order.unit, unit.keep(trainable, state, generators))
        self._made = Made(order.unit, order.params, state, generators)
        return Finished(
            unit=order.unit,
            trial=order.trial,
            epoch=order.epoch,
            partitions=tuple(member.partition for member in order.members),
            start_from=order.state,
            state=order.unit,
            bytes=size,
            began_at=began_at,
            ended_at=ended_at,
            fetch_s=fetch_s,
            save_s=time.perf_counter() - trained,
            fetched_bytes=fetched,
        )

    def evaluate(self, trainable: Trainable, order: Evaluate, opened: Opened) -> Evaluated:
        """Raises as `train`."""
        config = Config(dict(order.params), order.trial, order.seed, order.epoch, order.budget)
        partition = self._partition(
            opened, "train" if order.training else "validation", order.partition, order.unit
        )
        state, _ = self._state(trainable, order, config)
        self.at_work.set()
        began_at, clock = time.time(), time.perf_counter()
        metrics = unit.evaluate(trainable, state, partition, config)
        self.at_work.clear()
        return Evaluated(
            unit=order.unit,
            trial=order.trial,
            epoch=order.epoch,
            partition=order.partition,
            state=order.state,
            metrics=metrics,
            rows=len(partition),
            began_at=began_at,
            ended_at=began_at + time.perf_counter() - clock,
        )

    def leave_group(self) -> None:
        """The unit was cancelled: whoever waits for the other members waits no longer."""
        group = self._group
        if group is not None:
            group.close()

    def free_memory(self) -> None:
        self._made = None
        unit.free_memory()

    def _state(self, trainable: Trainable, order: Train | Evaluate, config: Config) -> tuple[Any, int]:
        """Decoded, and how many of its bytes came over the network.
        One that is evaluated right after it was made here is taken as it is."""
        made, self._made = self._made, None
        if (
            made is not None
            and isinstance(order, Evaluate)
            and (made.name, made.params) == (order.state, order.params)
        ):
            chance.put_back(made.generators)
            return made.state, 0
        made = None  # before the next one takes memory
        if not order.state:
            fresh = unit.begin(trainable, config, order.seed)
            generators = chance.take()
            # which also tells before any training what cannot be kept
            self._prepare(unit.keep(trainable, fresh, generators).size)
            chance.put_back(generators)
            return fresh, 0
        data, fetched = self._ahead.take(order.state, order.sources)
        if isinstance(order, Train):
            self._prepare(len(data))
        return unit.load(trainable, data, config, foreign=self._foreign), fetched

    def _prepare(self, size: int) -> None:
        """While the unit runs, for what will come of it."""
        self._aside.do(lambda: self._shelf.prepare(size))

    def _train_together(
        self, trainable: Trainable, state: Any, partition: Partition, config: Config, order: Train, index: int
    ) -> Any:
        count = len(order.members)
        group: Group
        if index == 0:
            group = First(self._meetings, order.unit, count)
        else:
            group = Other(
                order.members[0].address, self._secret, order.unit, index, lambda: self._stop(order.unit)
            )
        self._group = group
        try:
            of = [int(member.partition) for member in order.members]
            return unit.train_together(
                trainable, state, [partition], config, group.reduce, seed=order.seed, of=of
            )
        finally:
            self._group = None
            group.close()

    def _partition(self, opened: Opened, kind: Any, partition: Any, of_unit: str) -> Partition:
        try:
            found = opened.get(kind, partition)
        except KeyError as missing:
            raise SpecError(f"{kind} partition {partition} is not open on this worker") from missing
        rows, began, seen = max(len(found), 1), time.monotonic(), 0
        here = os.getpid(), threading.get_ident()

        def check(more: int) -> None:
            nonlocal seen
            if (os.getpid(), threading.get_ident()) != here:
                # a loader's thread, or its process, which has the link's socket but must not speak on it
                return
            self._stop(of_unit)
            self._progressed(of_unit, time.monotonic() - began, min(seen / rows, 1.0))
            seen += more

        return Watched(found, check)
