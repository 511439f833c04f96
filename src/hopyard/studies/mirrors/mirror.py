"""What a mirror of a study is, and the ones that a study asks for."""

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
    """Told what the journal is told, after it. Never waits long, and never ends a study: what cannot be
    mirrored is said once."""

    def trial_started(self, trial: TrialId, params: Mapping[str, ParamValue]) -> None:
        """Also told again when a trial goes on, perhaps with other params."""
        ...

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None: ...
    def trial_ended(self, trial: TrialId, *, failed: bool) -> None: ...
    def close(self) -> None: ...


class Mirrors:
    """All mirrors of a study as one. One that raises is told of by `log_message`, and left out from then
    on."""

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

    def _call_each(self, method: str, *args: Any, **named: Any) -> None:
        for name, mirror in list(self._mirrors.items()):
            try:
                getattr(mirror, method)(*args, **named)
            except (
                Exception
            ) as failed:  # an error of a third-party library or its server must not fail the study
                del self._mirrors[name]
                self._log_message(f"curves are no longer sent to {name}: {_shorten_error(failed)}")


def create_mirrors(
    spec: StudySpec, folder: Path, log_message: Callable[[str], None], *, study: str = ""
) -> Mirrors:
    """The mirrors that the study asks for. folder: where TensorBoard's files go, a folder for each trial.
    study: what people call it. A server that does not answer is told of, and left out. Raises SpecError where
    a package that is needed is not installed."""
    found: dict[str, Mirror] = {}
    if spec.tensorboard:
        from hopyard.studies.mirrors.tensorboard import TensorBoard

        found["TensorBoard"] = TensorBoard(folder)
    if spec.mlflow:
        from hopyard.studies.mirrors.mlflow import MLflow

        try:
            found["MLflow"] = MLflow(spec.mlflow, experiment=spec.name, study=study or spec.name)
        except SpecError:
            raise
        except Exception as failed:  # a study does not wait for a server that only watches it
            log_message(
                f"curves are not sent to MLflow: {spec.mlflow} cannot be used ({_shorten_error(failed)})"
            )
    return Mirrors(found, log_message)


def _shorten_error(error: Exception) -> str:
    """In a line: what HTTP libraries say of a server that is away takes many."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[: _MAX_ERROR_CHARS - 1]}…"
