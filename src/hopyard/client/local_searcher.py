"""Builds the searcher of a study in this process, to check its settings before the study is submitted."""

from __future__ import annotations

from typing import Any

from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.interfaces.searcher import Searcher


def build_searcher(study: StudySpec, *, source_name: str = "") -> Searcher | None:
    """Returns the study's searcher; None if only the study's environment can build it.

    source_name: the file or function with the settings of the study. Raises SpecError for settings that are
    invalid for the searcher, such as an infinite grid.
    """
    from hopyard.domain.searchers import is_custom
    from hopyard.searchers.optuna_model import MissingPackage
    from hopyard.searchers.registry import build

    if any(map(is_custom, (study.searcher.name, str(study.searcher.options.get("of", ""))))):
        return None
    try:
        return build(study, _own_searcher_error)
    except MissingPackage:
        return None
    except SpecError as error:
        raise SpecError(
            f"{source_name}: {error.message}" if source_name else error.message, hints=error.hints
        ) from error


def _own_searcher_error(text: str) -> Any:
    raise AssertionError(f"`{text}` is looked up where the study runs")
