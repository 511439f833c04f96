"""Leaderboards: which run is best on a dataset, and whose checkpoint is worth keeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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
    """metric: "" where no run has summarised anything yet."""

    metric: str
    higher_is_better: bool
    rows: tuple[LeaderboardRow, ...]


def rank_runs(
    dataset: Dataset, runs: Sequence[RunSummary], *, metric: str = "", limit: int | None = None
) -> Leaderboard:
    """Best first, one row a run; equal values go to the earlier submission.

    metric: "" takes the dataset's, else the name that most of the runs summarised (the first of the alphabet
    of several). The direction is the dataset's where it says one for this metric, else what the metric's name
    tells.
    """
    chosen = metric or dataset.metric or most_used_metric(runs)
    told = dataset.higher_is_better if chosen == dataset.metric or not dataset.metric else None
    higher = higher_is_better(chosen) if told is None else told
    having = [run for run in runs if chosen in run.summary]
    having.sort(key=lambda run: (sort_key(run.summary[chosen], higher=higher), run.submitted_at, run.id))
    rows = [
        LeaderboardRow(place, run, run.summary[chosen]) for place, run in enumerate(having[:limit], start=1)
    ]
    return Leaderboard(chosen, higher, tuple(rows))


def most_used_metric(runs: Sequence[RunSummary]) -> str:
    # how many trials a study made is no result
    counts = Counter(name for run in runs for name in run.summary if name not in COUNT_SUMMARIES)
    return min(counts, key=lambda name: (-counts[name], name), default="")


async def pin_best_checkpoint(runs: RunStore, datasets: DatasetStore, ended: Run) -> RunId | None:
    """A run ended: keep the newest checkpoint of the best run of each dataset that it used.
    The last best run, if any.

    A checkpoint that was kept because it was best once stays kept: somebody may have taken note of it.
    """
    best: RunId | None = None
    for name in {ref.name for ref in ended.spec.datasets}:
        dataset = await datasets.find(name)
        if dataset is None:
            continue
        board = rank_runs(dataset, await runs.list_summaries(name, limit=MAX_RANKED_RUNS), limit=1)
        if not board.rows:
            continue
        best = board.rows[0].run.id
        checkpoints = await runs.checkpoints(best)
        if checkpoints and not checkpoints[-1].kept:
            await runs.set_checkpoint_kept(best, checkpoints[-1].step, True)
    return best
