"""A callback for the `Trainer` of Lightning.

hopyard = HopCallback()
trainer = Trainer(callbacks=[hopyard], …)
trainer.fit(model, loader, ckpt_path=hopyard.last_checkpoint())
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers.logger import Logger

from hopyard.sdk import rng_state
from hopyard.sdk.framework_loop import FrameworkLoop, checkpoint_folder, may_resume

_PREFIX, _SUFFIX = "hop-step=", ".ckpt"


class HopCallback(Checkpoint):  # type: ignore[misc]  # its base has no types here
    """Makes each batch a safe point, logs what the loggers get, and saves after each epoch.

    folder: for the checkpoints, by default `$HOPYARD_RUN_DIR`. every: epochs from one checkpoint to the next.
    keep: how many of them stay in the folder. stop_in_epoch: whether a preemption ends the training between
    two batches of an epoch; otherwise it ends after the current epoch. By default it does so if all data
    loaders can continue there (`state_dict`); with others, Lightning repeats the first batches of the epoch.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        every: int = 1,
        keep: int = 2,
        stop_in_epoch: bool | None = None,
    ) -> None:
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(f"HopCallback: every={every}, keep={keep}: both must be at least 1")
        self.folder = str(checkpoint_folder(folder))
        self._every, self._keep, self._stop_in_epoch = every, keep, stop_in_epoch
        self._loop: FrameworkLoop | None = None
        self._is_in_epoch = False
        self._restored: dict[str, Any] = {}
        self._saved: int | None = None

    def last_checkpoint(self) -> str | None:
        """Returns the newest checkpoint of this run in the folder, for `ckpt_path`. None at the beginning of
        a run, and under plain `python`."""
        steps = self._saved_steps() if may_resume() else []
        return str(self._path(steps[-1])) if steps else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the random number generators, which Lightning does not save."""
        states = rng_state.capture()
        if "numpy" in states:  # as plain values, which `torch.load` accepts
            kind, keys, *rest = states["numpy"]
            states["numpy"] = (kind, [int(key) for key in keys], *rest)
        return {"random_state": states, "is_in_epoch": self._is_in_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loop = FrameworkLoop("lightning")
        trainer.loggers = [*trainer.loggers, _HopLogger(self._loop)]
        if not self._restored.get("is_in_epoch"):
            self._restore_generators(trainer)  # before the data loader of the next epoch draws its order

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_generators(trainer)
        if self._stop_in_epoch is None:
            loaders = trainer.fit_loop._combined_loader.flattened
            self._stop_in_epoch = all(hasattr(loader, "load_state_dict") for loader in loaders)
        if self._loop is not None:
            tuned = [*trainer.optimizers, *(each.scheduler for each in trainer.lr_scheduler_configs)]
            self._loop.begin({f"optimizer_{number}": value for number, value in enumerate(tuned)})

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        may_stop = bool(self._stop_in_epoch)
        if self._loop is None or not self._loop.reach(trainer.global_step, may_stop=may_stop):
            return
        if may_stop:
            self._is_in_epoch = True
            self._save(trainer)
        self._loop.exit(
            self._saved
        )  # otherwise it was paused inside the epoch, which the next attempt repeats

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._loop is None:
            return
        done, total = trainer.current_epoch + 1, trainer.max_epochs
        self._loop.report_progress(done, None if total == -1 else total, "epoch")
        is_stopping = self._loop.reach(trainer.global_step)
        if is_stopping or done % self._every == 0 or done == total:
            self._save(trainer)
        if is_stopping:
            self._loop.exit(self._saved)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._loop is not None:
            self._loop.end()
            self._loop = None

    def _save(self, trainer: Trainer) -> None:
        self._saved = trainer.global_step
        trainer.save_checkpoint(self._path(self._saved), weights_only=False)
        for step in self._saved_steps()[: -self._keep] if trainer.is_global_zero else ():
            with suppress(FileNotFoundError, NotADirectoryError):
                shutil.rmtree(self._path(step)) if self._path(step).is_dir() else self._path(step).unlink()

    def _restore_generators(self, trainer: Trainer) -> None:
        states = self._restored.pop("random_state", None)
        if states is not None and trainer.world_size == 1:  # the state is that of rank 0
            rng_state.restore(states)

    def _path(self, step: int) -> Path:
        return Path(self.folder, f"{_PREFIX}{step}{_SUFFIX}")

    def _saved_steps(self) -> list[int]:
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        numbers = [name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names]
        return sorted(int(number) for number in numbers if number.isdecimal())


class _HopLogger(Logger):  # type: ignore[misc]
    """Gets the metrics and hyperparameters that Lightning gives to loggers."""

    name, version = "hopyard", 0

    def __init__(self, loop: FrameworkLoop) -> None:
        super().__init__()
        self._loop = loop

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self._loop.session.group.rank() == 0:
            self._loop.log(metrics, step or 0)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self._loop.record_params(dict(params) if isinstance(params, Mapping) else vars(params))
