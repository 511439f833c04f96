"""Writes TensorBoard files with a folder per trial, so that TensorBoard's sidebar lists the trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.errors import SpecError


class TensorBoard:
    """Uses tensorboardX or PyTorch's own writer, whichever is installed. Raises SpecError if neither is."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._writer_class = folder, _find_writer_class()
        self._writers: dict[TrialId, Any] = {}

    def trial_started(self, trial: TrialId, params: Mapping[str, ParamValue]) -> None:
        writer = self._writers.get(trial)
        if writer is None:
            writer = self._writers[trial] = self._writer_class(str(self._folder / f"trial-{trial}"))
        writer.add_text("params", "  \n".join(f"{name} = {value}" for name, value in params.items()))

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writers[trial].add_scalar(name, value, step)
        self._writers[trial].flush()

    def trial_ended(self, trial: TrialId, *, failed: bool) -> None:
        del failed  # curves do not show it
        writer = self._writers.pop(trial, None)
        if writer is not None:
            writer.close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _find_writer_class() -> Any:
    try:
        from tensorboardX import SummaryWriter

        return SummaryWriter
    except ImportError:
        pass
    try:
        from torch.utils.tensorboard import SummaryWriter as TorchWriter

        return TorchWriter
    except ImportError:
        raise SpecError(
            "tensorboard: the study's environment has no package that writes TensorBoard files",
            hints=(
                "pip install tensorboardX",
                "or remove `tensorboard: true`: `hop search show` and `hop plot` show the curves too",
            ),
        ) from None
