"""Leaderboards: ranks the runs on a dataset, and pins the checkpoint of the best run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from hopyard.config.metric_goal import infer_goal
from hopyard.domain.best_checkpoint import best_checkpoint, checkpoint_of_value
from hopyard.domain.dataset import Dataset
from hopyard.domain.ids import RunId
from hopyard.domain.metric_direction import higher_is_better, sort_key
from hopyard.domain.run import Run
from hopyard.domain.study import COUNT_SUMMARIES
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.run_store import RunStore, RunSummary

MAX_RANKED_RUNS = 10_000  # newest runs that are considered
MAX_RECORDS = 1000
_VALIDATION = re.compile(r"(^|[_./ -])(val|valid|validation|eval|test|dev)([_./ -]|\Z)", re.I)
_TRAINING = re.compile(r"(^|[_./ -])(train|training)([_./ -]|\Z)", re.I)


class ValueSource(StrEnum):
    """Where a run's value on a leaderboard comes from: its summary, or the curve that it logged."""

    SUMMARY = "summary"
    LAST = "last"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class LeaderboardResult:
    """The value of one run. step: of the curve; None for a summary."""

    value: float
    source: ValueSource
    step: int | None = None


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    rank: int
    run: RunSummary
    result: LeaderboardResult

    @property
    def value(self) -> float:
        return self.result.value


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """metric: "" while no run has a result. ranked: the number of runs with a result, of which `rows` may be
    the first. records: the runs that were the best ones when they were submitted, oldest first; the newest
    MAX_RECORDS of them."""

    metric: str
    higher_is_better: bool
    rows: tuple[LeaderboardRow, ...]
    ranked: int = 0
    records: tuple[LeaderboardRow, ...] = ()


def rank_runs(
    dataset: Dataset,
    runs: Sequence[RunSummary],
    *,
    metric: str = "",
    higher: bool | None = None,
    results: Mapping[RunId, LeaderboardResult] | None = None,
    limit: int | None = None,
) -> Leaderboard:
    """Returns the leaderboard, best run first, one row per run. Of equal values, the earlier submission ranks
    first.

    metric: as in `choose_metric`. higher: the direction; None as in `is_higher_better`. results: the value of
    each run that has one; None takes the summaries, and for runs without the metric there, the last value
    that they logged.
    """
    metric_name = choose_metric(dataset, runs, metric)
    is_higher = is_higher_better(dataset, metric_name, higher)
    if results is None:
        results = {run.id: result for run in runs if (result := default_result(run, metric_name)) is not None}
    ranked = [(run, results[run.id]) for run in runs if run.id in results]
    ranked.sort(
        key=lambda pair: (sort_key(pair[1].value, higher=is_higher), pair[0].submitted_at, pair[0].id)
    )
    rows = [LeaderboardRow(rank, run, result) for rank, (run, result) in enumerate(ranked, start=1)]
    return Leaderboard(metric_name, is_higher, tuple(rows[:limit]), len(rows), find_records(rows))


def find_records(rows: Sequence[LeaderboardRow]) -> tuple[LeaderboardRow, ...]:
    """Returns the rows that are better than all rows of earlier submissions, oldest first; the newest
    MAX_RECORDS of them. Values that are not finite are no records."""
    records: list[LeaderboardRow] = []
    for row in sorted(rows, key=lambda row: (row.run.submitted_at, row.rank)):
        if isfinite(row.value) and (not records or row.rank < records[-1].rank):
            records.append(row)
    return tuple(records[-MAX_RECORDS:])


def default_result(run: RunSummary, metric: str) -> LeaderboardResult | None:
    if metric in run.summary:
        return LeaderboardResult(run.summary[metric], ValueSource.SUMMARY)
    return last_result(run, metric)


def last_result(run: RunSummary, metric: str) -> LeaderboardResult | None:
    if metric not in run.latest:
        return None
    step, value = run.latest[metric]
    return LeaderboardResult(value, ValueSource.LAST, step)


def choose_metric(dataset: Dataset, runs: Sequence[RunSummary], metric: str = "") -> str:
    """Returns the requested metric, else that of the dataset, else the name that most of the runs have in
    their summary. Without any summary: the name that most of the runs logged, a validation metric with a
    known direction first. Of several, the first in alphabetical order."""
    return metric or dataset.metric or most_used_metric(runs) or _most_logged_metric(runs)


def is_higher_better(dataset: Dataset, metric: str, higher: bool | None = None) -> bool:
    """Returns `higher`, else what the dataset declares for this metric, else what the metric's name
    implies."""
    if higher is not None:
        return higher
    declared = dataset.higher_is_better if metric == dataset.metric or not dataset.metric else None
    return higher_is_better(metric) if declared is None else declared


def most_used_metric(runs: Sequence[RunSummary]) -> str:
    # the number of trials of a study is not a result
    counts = Counter(name for run in runs for name in run.summary if name not in COUNT_SUMMARIES)
    return min(counts, key=lambda name: (-counts[name], name), default="")


def _most_logged_metric(runs: Sequence[RunSummary]) -> str:
    counts = Counter(name for run in runs for name in run.latest)
    return min(
        counts,
        key=lambda name: (
            _VALIDATION.search(name) is None,
            infer_goal(name) is None,
            _TRAINING.search(name) is not None,
            -counts[name],
            name,
        ),
        default="",
    )


async def pin_best_checkpoint(runs: RunStore, datasets: DatasetStore, ended: Run) -> RunId | None:
    """Keeps the best checkpoint of the best run of each dataset that the ended run used, or its newest if no
    metric decides. Returns the last of these best runs, if any.

    A checkpoint that was once kept as the best stays kept, since a user may rely on it.
    """
    best: RunId | None = None
    for name in {ref.name for ref in ended.spec.datasets}:
        dataset = await datasets.find(name)
        if dataset is None:
            continue
        leaderboard = rank_runs(dataset, await runs.list_summaries(name, limit=MAX_RANKED_RUNS), limit=1)
        if not leaderboard.rows:
            continue
        first = leaderboard.rows[0]
        best = first.run.id
        checkpoints = await runs.checkpoints(best)
        if not checkpoints:
            continue
        selected = best_checkpoint(checkpoints, [dataset]) or checkpoint_of_value(
            checkpoints,
            leaderboard.metric,
            first.value,
            step=first.result.step,
            higher=leaderboard.higher_is_better,
        )
        if selected is None:
            continue
        if not selected.kept:
            await runs.set_checkpoint_kept(best, selected.step, True)
    return best
