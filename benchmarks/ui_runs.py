"""The runs that `benchmarks.ui` looks at, written through the stores of a home before its server starts, and
the reports of those that are live."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hopyard.api_client.client import Client
from hopyard.config.home import Home
from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind
from hopyard.domain.ids import RunId, attempt_id, new_run_id
from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.domain.run import RoleSpec, RunSpec
from hopyard.interfaces.run_store import NewRun
from hopyard.interfaces.streams import Segment
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.stores.stream_files import FolderStreams

METRIC, BATCH, REPORT_EVERY_S = "loss", 500, 2.0
_PARALLEL_WRITES = 250
_STREAM_HEAD = pack_definition(METRIC)


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How many runs there are, how many of them are live or have a long curve, and the points of one."""

    runs: int
    live: int
    curves: int
    points: int


@dataclass(frozen=True, slots=True)
class UiRuns:
    """The ids of live runs, and of those with a long curve."""

    live: Sequence[RunId]
    curves: Sequence[RunId]


def accuracy(number: int) -> float:
    """Returns the value of `val_acc` of a run: between 0.5 and 1, the same each time."""
    return 0.5 + random.Random(number).random() / 2


def curve(number: int, points: int) -> list[float]:
    """Returns a falling, noisy loss."""
    noise = random.Random(number)
    return [math.exp(-3 * step / points) + 0.05 * noise.random() for step in range(points)]


def fill(home: Home, counts: RunCounts) -> UiRuns:
    """Creates the runs, newest last: those with long curves, the live ones, and the others before them."""
    return asyncio.run(_fill(home, counts))


async def _fill(home: Home, counts: RunCounts) -> UiRuns:
    database, streams = Database.open(home.database), FolderStreams(home.streams)
    store, start = SqlRunStore(database), datetime.now(UTC) - timedelta(minutes=counts.runs)
    first_live = counts.runs - counts.live
    ids = [new_run_id(start + timedelta(minutes=number), number.to_bytes(7)) for number in range(counts.runs)]
    with_curve = range(first_live - counts.curves, first_live)
    limit = asyncio.Semaphore(_PARALLEL_WRITES)

    async def add(number: int) -> None:
        run, at, value = ids[number], start + timedelta(minutes=number), accuracy(number)
        spec = RunSpec(
            f"project-{number % 7}",
            (RoleSpec(("python", "train.py")),),
            label=f"trial-{number}",
            tags={"team": ("vision", "speech", "text")[number % 3]},
        )
        loss = curve(number, counts.points) if number in with_curve else [1 - value]
        async with limit:
            await store.create([NewRun(run, f"user-{number % 20}", spec, offline=True)], now=at)
            if number in with_curve:
                data = _STREAM_HEAD + b"".join(
                    pack_point(POINT, series_id(METRIC), step, at.timestamp() + step, each)
                    for step, each in enumerate(loss)
                )
                await streams.append(attempt_id(run, 1), 0, [Segment("metrics", 0, data)])
            await store.record_params(run, {"lr": 0.1 / (1 + number % 7), "layers": 1 + number % 5})
            await store.record_metrics(
                run, {METRIC: (len(loss) - 1, loss[-1]), "val_acc": (len(loss) - 1, value)}
            )
            if number < first_live:
                await store.record_summary(run, {"val_acc": value})
                failed = number % 10 == 9
                await store.finish_offline(
                    run,
                    AttemptPhase.FAILED if failed else AttemptPhase.SUCCEEDED,
                    Exit(ExitKind.EXIT_CODE, int(failed), "failed" if failed else "finished"),
                    started_at=at,
                    ended_at=at + timedelta(minutes=1),
                )

    try:
        for first in range(0, counts.runs, BATCH):
            numbers = range(first, min(first + BATCH, counts.runs))
            await asyncio.gather(*(add(number) for number in numbers))
    finally:
        await streams.close()
        await database.close()
    return UiRuns(ids[first_live:], [ids[number] for number in with_curve])


@contextmanager
def live_reports(client: Client, runs: Sequence[RunId]) -> Iterator[None]:
    """Sends a point of each of these runs every two seconds, as their replicas would, until the end of the
    block. Raises what the server refused."""
    ended, failures = threading.Event(), list[BaseException]()
    status = {"rank": 0, "phase": "running", "detail": "", "exit": None}

    def send() -> None:
        offsets, step = dict.fromkeys(runs, 0), 0
        try:
            while runs and not ended.is_set():
                for run in runs:
                    head = b"" if offsets[run] else _STREAM_HEAD
                    data = head + pack_point(POINT, series_id(METRIC), step, time.time(), 1 / (step + 1))
                    segment = {"stream": "metrics", "offset": offsets[run], "size": len(data)}
                    request = {"status": status, "segments": [segment], "final": False}
                    body = json.dumps(request).encode() + b"\n" + data
                    path = f"/attempts/{attempt_id(run, 1)}/replicas/0/sync"
                    with client.open("POST", path, body=body) as answer:
                        offsets[run] = json.loads(answer.read())["offsets"]["metrics"]
                    if ended.wait(REPORT_EVERY_S / len(runs)):
                        return
                step += 1
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=send, name="live runs")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]
