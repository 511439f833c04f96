"""The interface of a mirror of a study, and the creation of the mirrors in its spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError

_MAX_ERROR_CHARS = 200


class Mirror(Protocol):
    """Receives the same events as the journal, after it. It must not block for long, and never fails a study:
    its errors are logged once."""

    def trial_started(self, trial: TrialId, params: Mapping[str, ParamValue]) -> None:
        """Also called when a trial resumes, perhaps with other params."""
        ...

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None: ...
    def trial_ended(self, trial: TrialId, *, failed: bool) -> None: ...
    def close(self) -> None: ...


class Mirrors:
    """Combines all mirrors of a study. A mirror that raises is logged with `log_message`, and not called
    again."""

    def __init__(self, mirrors: Mapping[str, Mirror], log_message: Callable[[str], None]) -> None:
        self._mirrors, self._log_message = dict(mirrors), log_message

    def trial_started(self, trial: TrialId, params: Mapping[str, ParamValue]) -> None:
        self._call_each("trial_started", trial, params)

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        self._call_each("trial_reported", trial, step, metrics)

    def trial_ended(self, trial: TrialId, *, failed: bool) -> None:
        self._call_each("trial_ended", trial, failed=failed)

    def close(self) -> None:
        self._call_each("close")

    def _call_each(self, method: str, *args: Any, **keywords: Any) -> None:
        for name, mirror in list(self._mirrors.items()):
            try:
                getattr(mirror, method)(*args, **keywords)
            except (
                Exception
            ) as error:  # an error of a third-party library or its server must not fail the study
                del self._mirrors[name]
                self._log_message(f"curves are no longer sent to {name}: {_shorten_error(error)}")


def create_mirrors(
    spec: StudySpec, folder: Path, log_message: Callable[[str], None], *, study: str = ""
) -> Mirrors:
    """Creates the mirrors in the study's spec. folder: for TensorBoard's files, with a folder per trial.
    study: its name for users. An unavailable server is logged and ignored. Raises SpecError if a required
    package is not installed."""
    mirrors: dict[str, Mirror] = {}
    if spec.tensorboard:
        from hopyard.studies.mirrors.tensorboard import TensorBoard

        mirrors["TensorBoard"] = TensorBoard(folder)
    if spec.mlflow:
        from hopyard.studies.mirrors.mlflow import MLflow

        try:
            mirrors["MLflow"] = MLflow(spec.mlflow, experiment=spec.name, study=study or spec.name)
        except SpecError:
            raise
        except Exception as error:  # a study must not depend on a server that only displays it
            log_message(
                f"curves are not sent to MLflow: {spec.mlflow} cannot be used ({_shorten_error(error)})"
            )
    return Mirrors(mirrors, log_message)


def _shorten_error(error: Exception) -> str:
    """Returns one line, because HTTP libraries describe an unavailable server in many."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[: _MAX_ERROR_CHARS - 1]}…"
