"""A study as plain data, for `--json`, programs and the UI; and the importance of its parameters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hopyard.errors import HopyardError
from hopyard.studies.view.study_view import StudyView, TrialView

_MIN_RESULTS = 8  # and at least twice the number of parameters
_CERTAIN_RESULTS = 60  # with fewer, the best tenth is less than six trials


def as_data(view: StudyView) -> dict[str, Any]:
    """Returns the whole study: its search, trials (the best first), the best one, importances, events of
    workers, hops."""
    best = view.best()
    return {
        "name": view.spec.get("name", ""),
        "metric": view.metric,
        "goal": view.goal.value,
        "searcher": view.spec.get("searcher"),
        "done": view.done,
        "counts": {state.value: number for state, number in view.counts().items()},
        "best": None if best is None else best.id,
        "trials": [trial_data(view, trial) for trial in view.ranked()],
        "importance": importance_of(view),
        "importance_uncertain": is_importance_uncertain(view),
        "hops": view.hops,
        "hop_bytes": view.hop_bytes,
        "resumed": view.resumed,
        "continues": view.continues or None,
        "stop_rule": view.stop_rule or None,
        "beginning": view.spec.get("beginning"),
        "improvements": [asdict(each) for each in view.improvements],
        "workers": [
            {"worker": note.worker, "event": note.event, "detail": note.detail} for note in view.notes
        ],
    }


def trial_data(view: StudyView, trial: TrialView) -> dict[str, Any]:
    return {
        "trial": trial.id,
        "state": trial.state.value,
        "params": trial.params,
        "epoch": trial.epoch,
        "budget": trial.budget,
        "value": trial.value,
        "best": trial.best,
        "best_epoch": trial.best_epoch,
        "best_params": trial.best_params or None,
        "metrics": trial.metrics,
        "points": [[step, value] for step, value in trial.points],
        "lineage": view.lineage(trial),
        "schedule": [
            {
                "from_epoch": entry.from_epoch,
                "trial": name,
                "params": dict(entry.params),
                "copied": entry.copied,
            }
            for name, entry in view.schedule(trial)
        ],
        "rungs": [asdict(each) for each in trial.rungs],
        "began_at": trial.began_at or None,
        "reported_at": trial.reported_at or None,
        "workers": list(trial.where),
        "run": trial.run or None,
        "run_name": trial.run_name or None,
        "stop_reason": trial.stop_reason or None,
        "error": trial.error or None,
        "traceback": trial.traceback or None,
    }


def importance_of(view: StudyView) -> dict[str, float]:
    """Returns the share of each parameter in the results, the largest first. Empty if it cannot be computed:
    too few results, or equal results."""
    if not has_enough_results(view):
        return {}
    from hopyard.config.schemas.study_json import space_from_json
    from hopyard.domain.study import Goal
    from hopyard.searchers.importance import importance

    try:
        return dict(
            importance(space_from_json(view.spec["space"]), _results(view), goal=Goal(view.spec["goal"]))
        )
    except HopyardError:
        return {}


def has_enough_results(view: StudyView) -> bool:
    """Returns whether the importance of parameters can be computed."""
    results = _results(view)
    names = {name for params, _ in results for name in params}
    return len(results) >= max(_MIN_RESULTS, 2 * len(names)) and len({value for _, value in results}) > 1


def is_importance_uncertain(view: StudyView) -> bool:
    """Returns whether the results are so few that the order of the importances may be chance."""
    return len(_results(view)) < _CERTAIN_RESULTS


def _results(view: StudyView) -> list[tuple[dict[str, Any], float]]:
    return [(trial.best_params, trial.best) for trial in view.trials.values() if trial.best is not None]
