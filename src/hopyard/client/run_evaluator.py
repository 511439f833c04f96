"""Submits the evaluator of a hop.yaml beside its run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.client.feedback import Notify, print_notice
from hopyard.client.param_forms import with_param_format
from hopyard.client.submit import submit_run
from hopyard.config.run_request import RunRequest
from hopyard.errors import HopyardError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def submit_evaluator(
    request: RunRequest,
    run: api.RunOut,
    folder: Path,
    *,
    interpreter: str | None = None,
    notify: Notify = print_notice,
) -> None:
    """Submits the run that evaluates `run`, if the request of `run` has an evaluator. `run` continues without
    one if that fails."""
    if request.evaluator is None:
        return
    try:
        evaluation = with_param_format(
            request.evaluation_of(run["id"], newest=request.evaluator.newest), folder, notify=notify
        )
        _, submitted = submit_run(evaluation, folder, interpreter=interpreter, notify=notify)
    except HopyardError as error:
        notify(f"warning: no evaluator was started: {error.message}")
    else:
        notify(f"{submitted['name']} evaluates {run['name']}")
