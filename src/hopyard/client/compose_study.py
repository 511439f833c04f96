"""Makes the spec of a study from a search file and files of its code, within the program of `compose_run`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopyard.client.compose_checks import check_files, make_environment
from hopyard.client.default_searcher import with_default_searcher
from hopyard.client.local_searcher import build_searcher
from hopyard.client.param_forms import with_trial_format
from hopyard.client.submit import warn_of_secrets
from hopyard.config.search.search_file import read_search
from hopyard.config.yaml_loader import dump_yaml
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.study import StudySpec
from hopyard.domain.trial import Proposal

_DEFAULT_NAME = "search"
_FIRST_TRIALS = 5


def is_study_file(top: YamlSection) -> bool:
    """Returns whether the file is that of a study: a run has no space."""
    return "space" in top.values


def compose_study(
    top: YamlSection, folder: Path, interpreter: str, *, base: Mapping[str, Any] | None, has_code: bool
) -> dict[str, Any]:
    """Returns the same as `compose_run.compose`, and under `study` what would start, with the first trials.

    Raises SpecError.
    """
    values = _plain(top.values) | ({"python": interpreter} if interpreter else {})
    request = read_search(top, base=folder, folder=folder, name=_DEFAULT_NAME)
    check_files(request.trial or request.run, folder, top, has_code=has_code)
    notices: list[str] = []
    warn_of_secrets(request.run, top.file, notices.append)
    request = with_default_searcher(request, notify=notices.append)
    proposals = _first_proposals(request.study, top.file)
    request = with_trial_format(request, folder, notify=notices.append)
    blobs: dict[str, bytes] = {}
    environment = make_environment(
        request.run, folder, interpreter, base, blobs, notices, trial=request.trial, is_study=True
    )
    return {
        "values": values,
        "file": dump_yaml(values, width=100, default_flow_style=None),
        "spec": request.spec(code=None, git=None, environment=environment),
        "study": _describe(request.study, proposals),
        "blobs": {digest: base64.b64encode(data).decode() for digest, data in blobs.items()},
        "notices": notices,
    }


def _describe(study: StudySpec, proposals: Sequence[Proposal]) -> dict[str, Any]:
    return {
        "name": study.name,
        "metric": study.metric,
        "goal": study.goal.value,
        "searcher": study.searcher.name,
        "parallel": study.parallel.value,
        "trials": study.trials,
        "concurrent": study.max_live_trials,
        "budget": study.max_epochs if study.has_budget else None,
        "budget_unit": study.budget_unit.value,
        "first_trials": [
            {"trial": proposal.trial, "params": dict(proposal.params), "budget": proposal.budget}
            for proposal in proposals
        ],
    }


def _first_proposals(study: StudySpec, file: str) -> Sequence[Proposal]:
    """Returns the first trials. They stay unknown if the searcher is of the code, which is not started, or
    loads libraries, which this process may not. Raises SpecError for invalid settings."""
    proposals: list[Proposal] = []
    try:
        searcher = build_searcher(study, source_name=file)
        while searcher is not None and len(proposals) < _FIRST_TRIALS:
            proposal = searcher.ask()
            if not isinstance(proposal, Proposal):
                break
            proposals.append(proposal)
    except (PermissionError, ImportError):  # from the guard of `compose_run`
        return ()
    return proposals


def _plain(value: Any) -> Any:
    """Returns the value of a file with the usual types of mappings and lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
