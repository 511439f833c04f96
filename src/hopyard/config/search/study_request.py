"""The checked request of a study, and the RunSpec that the server gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.config.schemas.study_json import study_to_json
from hopyard.domain.study import StudySpec

_MAX_ATTEMPTS = 20  # a study that loses its driver loses nothing: it resumes from its journal
DRIVER_COMMAND = ("python", "-u", "-m", "hopyard.studies")


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """study: without `trial`, which `spec` fills in. run: the study's own run, a driver and, of MOP, its
    workers. trial: what each trial runs (trials), with the same place in the queue, data and environment as
    the study; None of MOP. new_keys: by name, the marked words of searched keys that Hydra adds: `+lr`.
    texts: by name, the values of a parameter as typed. has_default_searcher: none was named."""

    study: StudySpec
    run: RunRequest
    trial: RunRequest | None = None
    new_keys: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    has_default_searcher: bool = False

    def spec(
        self, *, code: str | None, git: Mapping[str, Any] | None, environment: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The RunSpec as JSON, with the study's spec under `study`."""
        trial = None if self.trial is None else self.trial.spec(code=code, git=git, environment=environment)
        return {
            **self.run.spec(code=code, git=git, environment=environment),
            "max_attempts": _MAX_ATTEMPTS,
            "study": study_to_json(replace(self.study, trial=trial)),
        }


def driver_role() -> RoleRequest:
    """It decides and writes; what it takes beside the trials is little."""
    return RoleRequest(DRIVER_COMMAND, name="driver", cpu_milli=100)
