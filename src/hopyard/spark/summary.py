"""The result of a study on Spark: every trial, and the best model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.errors import NotFound
from hopyard.spark.best_model import BestModel, ModelSource
from hopyard.studies.view.best import find_best, read_state
from hopyard.studies.view.gantt import Gantt, gantt
from hopyard.studies.view.study_data import as_data, importance_of, trial_data
from hopyard.studies.view.study_view import StudyView, TrialView
from hopyard.trainables.config import Config


@dataclass(frozen=True, slots=True)
class Summary:
    """records: the journal. view: its evaluated content. states: the folder of saved states. model_source: of
    the study's models."""

    records: Sequence[Mapping[str, Any]]
    view: StudyView
    states: Path
    model_source: ModelSource | None = None

    @classmethod
    def from_records(cls, records: Sequence[Mapping[str, Any]], states: Path) -> Summary:
        return cls(records, StudyView.from_records(records), states)

    @property
    def trials(self) -> list[TrialView]:
        """All trials, the best first."""
        return self.view.ranked()

    @property
    def best(self) -> TrialView:
        """Raises NotFound if no trial has a value yet."""
        best_trial = self.view.best()
        if best_trial is None:
            raise NotFound("no trial has reported the metric yet")
        return best_trial

    @property
    def importance(self) -> dict[str, float]:
        return importance_of(self.view)

    def best_state(self) -> Any:
        """Returns the result of `train` for the best trial at its best epoch; for a `TorchTrainable` it has
        the `model`. Raises NotFound if none was saved."""
        # the store is the user's own, so its states are trusted
        return read_state(
            find_best(self.records, self.states),
            self.model_source.trainable if self.model_source is not None else None,
            self.view,
            untrusted=False,
        )

    def best_model(self) -> BestModel:
        """Returns the best trial at its best epoch, for predictions. Raises NotFound if none was saved,
        SpecError if the trainable cannot predict."""
        if self.model_source is None:
            raise NotFound("this summary was not created by `fit`")
        best = self.best
        config = Config(
            best.params,
            best.id,
            int(self.view.spec.get("seed", 0)),
            self.view.epochs(best.best_epoch),
            self.view.epochs(best.budget),
        )
        return BestModel(self.model_source, find_best(self.records, self.states).read_bytes(), config)

    def gantt(self) -> Gantt:
        """The Gantt chart of trials on workers."""
        return gantt(self.view)

    def data(self) -> dict[str, Any]:
        """The data of `hop search show --json`."""
        return as_data(self.view)

    def table(self) -> list[dict[str, Any]]:
        """A row for each trial: `spark.createDataFrame(summary.table())` or
        `pandas.DataFrame(summary.table())`."""
        keys = ("trial", "state", "epoch", "value", "best", "best_epoch")
        return [
            {key: trial_data(self.view, trial)[key] for key in keys} | dict(trial.params)
            for trial in self.trials
        ]
