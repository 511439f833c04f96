"""Leaderboards: ranks the runs on a dataset, and pins the checkpoint of the best run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hopyard.domain.best_checkpoint import best_checkpoint
from hopyard.domain.dataset import Dataset
from hopyard.domain.ids import RunId
from hopyard.domain.metric_direction import higher_is_better, sort_key
from hopyard.domain.run import Run
from hopyard.domain.study import COUNT_SUMMARIES
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.run_store import RunStore, RunSummary

MAX_RANKED_RUNS = 10_000  # newest runs that are considered


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    rank: int
    run: RunSummary
    value: float


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """metric: "" while no run has a summary."""

    metric: str
    higher_is_better: bool
    rows: tuple[LeaderboardRow, ...]


def rank_runs(
    dataset: Dataset, runs: Sequence[RunSummary], *, metric: str = "", limit: int | None = None
) -> Leaderboard:
    """Returns the leaderboard, best run first, one row per run. Of equal values, the earlier submission ranks
    first.

    metric: "" takes the dataset's metric, else the name that most of the runs have in their summary (the
    first in alphabetical order of several). The direction is the dataset's if it declares one for this
    metric, else it follows from the metric's name.
    """
    metric_name = metric or dataset.metric or most_used_metric(runs)
    declared_direction = (
        dataset.higher_is_better if metric_name == dataset.metric or not dataset.metric else None
    )
    is_higher_better = higher_is_better(metric_name) if declared_direction is None else declared_direction
    ranked = [run for run in runs if metric_name in run.summary]
    ranked.sort(
        key=lambda run: (
            sort_key(run.summary[metric_name], higher=is_higher_better),
            run.submitted_at,
            run.id,
        )
    )
    rows = [
        LeaderboardRow(rank, run, run.summary[metric_name])
        for rank, run in enumerate(ranked[:limit], start=1)
    ]
    return Leaderboard(metric_name, is_higher_better, tuple(rows))


def most_used_metric(runs: Sequence[RunSummary]) -> str:
    # the number of trials of a study is not a result
    counts = Counter(name for run in runs for name in run.summary if name not in COUNT_SUMMARIES)
    return min(counts, key=lambda name: (-counts[name], name), default="")


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
        best = leaderboard.rows[0].run.id
        checkpoints = await runs.checkpoints(best)
        if not checkpoints:
            continue
        selected = best_checkpoint(checkpoints, [dataset]) or checkpoints[-1]
        if not selected.kept:
            await runs.set_checkpoint_kept(best, selected.step, True)
    return best
