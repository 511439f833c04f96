"""The searcher of a study that names none."""

from __future__ import annotations

from dataclasses import replace

from hopyard.client.feedback import Notify
from hopyard.config.search.study_request import StudyRequest
from hopyard.domain.space import count_combinations
from hopyard.domain.study import SearcherSpec


def with_default_searcher(request: StudyRequest, *, notify: Notify) -> StudyRequest:
    """Returns a study that names no searcher with a grid, if all combinations of its space fit into its
    number of trials: random ones could be equal."""
    study = request.study
    if not request.has_default_searcher or study.points or study.trials is None:
        return request
    count = count_combinations(study.space, study.trials)
    if count is None:
        return request
    combinations = "1 combination is" if count == 1 else f"{count} combinations are"
    notify(f"note: the {combinations} tried once each (searcher: grid; `random` draws them instead)")
    return replace(request, study=replace(study, searcher=SearcherSpec("grid")))
