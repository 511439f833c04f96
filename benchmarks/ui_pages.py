"""Answers of a large cluster and a large study, made of the schemas of the API, for the pages that show them.

`benchmarks.ui` gives them to the browser in place of the server's, so that it measures the pages alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from playwright.sync_api import BrowserContext, Route

from hopyard.domain.resources import Gpu
from hopyard.domain.run import RunPhase
from hopyard.domain.study import Goal
from hopyard.server.routes.allocations import AllocationOut, AllocationsOut, HeldGpuOut
from hopyard.server.routes.nodes import NodeOut, NodesOut, UsedOut
from hopyard.server.schemas.studies import BestTrialOut, StudyOut, TrialOut, TrialsOut
from hopyard.studies.study_state import TrialPhase

GB, GPUS, PAGE, POOLS = 1_000_000_000, 8, 1000, 8
_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PageSizes:
    """How many nodes, waiting runs and trials the pages show. lines: of parallel coordinates."""

    nodes: int
    waiting: int
    trials: int
    lines: int


def nodes(count: int) -> NodesOut:
    cards = [Gpu(index, "NVIDIA A100-SXM4-80GB", 80 * GB) for index in range(GPUS)]
    return NodesOut(
        [
            NodeOut(
                id=f"node-{number:04}",
                engine="agent",
                cpu_milli=128_000,
                memory_bytes=1024 * GB,
                gpus=cards,
                pool=f"pool-{number % POOLS}",
                ready=number % 97 != 0,
                labels={"rack": f"r{number // 16}"},
                cordoned=number % 89 == 0,
                cordon_reason="",
                trouble="",
                extras={},
                used=UsedOut(64_000, 512 * GB, tuple(range(GPUS - 1)), (1000,) * (GPUS - 1)),
                reserved=(),
                server="",
                away_since=None,
                not_ready="",
            )
            for number in range(count)
        ]
    )


def allocations(first: int, count: int) -> AllocationsOut:
    """Returns a page of two runs on each node, with measured GPUs."""
    values = random.Random(first)
    last = min(first + PAGE, 2 * count)
    held = []
    for number in range(first, last):
        gpus = range(4 * (number % 2), 4 * (number % 2) + 4 - number % 2)
        held.append(
            AllocationOut(
                run=f"run-{number:06}",
                name=f"user-{number % 50}/project-{number % 7}/{number}",
                user=f"user-{number % 50}",
                queue=f"queue-{number % 12}",
                node=f"node-{number // 2:04}",
                ranks=[0],
                cpu_milli=32_000,
                memory_bytes=256 * GB,
                extras={},
                gpus=[
                    HeldGpuOut(
                        index=index,
                        milli=1000,
                        utilisation_percent=100 * values.random(),
                        memory_bytes=40 * GB,
                        temperature_celsius=30 + 60 * values.random(),
                    )
                    for index in gpus
                ],
                cpu_percent=1200.0,
                used_memory_bytes=100 * GB,
                placed_at=_AT,
                started_at=_AT,
                preemptible=True,
                stopping=False,
            )
        )
    return AllocationsOut(held, str(last) if last < 2 * count else None)


def trial(number: int) -> TrialOut:
    values = random.Random(number)
    accuracy = 0.5 + values.random() / 2
    return TrialOut(
        trial=str(number),
        state=TrialPhase.FAILED if number % 50 == 49 else TrialPhase.COMPLETED,
        params={
            "lr": 10 ** (-5 * values.random()),
            "layers": values.randrange(1, 9),
            "dropout": values.random(),
            "optimiser": values.choice(("adam", "sgd", "lion")),
            "batch": 2 ** values.randrange(4, 10),
        },
        epoch=10,
        budget=10,
        value=accuracy,
        best=accuracy,
        best_epoch=9,
        best_params=None,
        rungs=(),
        began_at=1.8e9 + number,
        reported_at=1.8e9 + number + 60 * values.random(),
        run=None,
        run_name=None,
        start_from=None,
        workers=("worker-0",),
        stop_reason=None,
        error=None,
    )


def study(run: str, count: int) -> StudyOut:
    best = max((trial(number) for number in range(min(count, PAGE))), key=lambda each: each.best or 0)
    return StudyOut(
        id=run,
        name="user-0/project-0/1",
        phase=RunPhase.SUCCEEDED,
        metric="val_acc",
        goal=Goal.MAX,
        unit="epoch",
        parallel="runs",
        searcher="random",
        trial_limit=count,
        max_budget=10,
        done=True,
        counts={TrialPhase.COMPLETED: count},
        best=BestTrialOut(best.trial, best.best or 0, 9, best.params),
        importance=(),
        importance_uncertain=False,
        improvements=(),
        stop_rule=None,
        continues=None,
        units=0,
        hops=0,
        hop_bytes=0,
        resumed=0,
        records=2 * count,
        skipped=0,
        workers=(),
    )


def answer_large(
    context: BrowserContext, sizes: PageSizes, row: Mapping[str, Any], made: dict[str, bytes]
) -> None:
    """Answers the requests of the pages. row: a run of `GET /runs`, of which waiting runs and studies are
    made. made: the answers by address, kept for later rounds."""

    def give(address: str, make: Callable[[Mapping[str, str]], Any]) -> None:
        def answer(route: Route) -> None:
            url = route.request.url
            if url not in made:
                query = {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
                made[url] = msgspec.json.encode(make(query))
            route.fulfill(body=made[url], content_type="application/json")

        context.route(address, answer)

    def waiting(query: Mapping[str, str]) -> object:
        size, first = int(query.get("limit", "50")), int(query.get("before", "-1")) + 1
        last = min(first + size, sizes.waiting)
        runs = [
            {
                **row,
                "id": str(number),
                "name": f"user-{number % 50}/project-{number % 7}/{number}",
                "phase": "queued",
                "position": number // 12,
                "hold_detail": f"needs 8 GPUs of one node, {number % 5} are free",
                "expected_at": "2026-01-02T00:00:00Z",
            }
            for number in range(first, last)
        ]
        return {"runs": runs, "next": str(last - 1) if last < sizes.waiting else None}

    def always(value: object) -> Callable[[Mapping[str, str]], object]:
        return lambda _: value

    def trials(count: int) -> Callable[[Mapping[str, str]], TrialsOut]:
        def page(query: Mapping[str, str]) -> TrialsOut:
            first = int(query.get("after", "0"))
            last = min(first + PAGE, count)
            found = [trial(number) for number in range(first, last)]
            return TrialsOut(found, 2 * count, last if last < count else None)

        return page

    give("**/api/v1/nodes", lambda _: nodes(sizes.nodes))
    give("**/api/v1/allocations*", lambda query: allocations(int(query.get("after", "0")), sizes.nodes))
    give("**/api/v1/runs?*phase=queued*", waiting)
    for name, count in (("long", sizes.trials), ("lines", sizes.lines)):
        ended = {**row, "id": name, "phase": "succeeded"}
        give(f"**/api/v1/runs/{name}", always(ended))
        give(f"**/api/v1/runs/{name}/study", always(study(name, count)))
        give(f"**/api/v1/runs/{name}/study/trials*", trials(count))
