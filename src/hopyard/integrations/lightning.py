"""A callback for the `Trainer` of Lightning: of the package `lightning`, or of `pytorch_lightning`.

hopyard = HopCallback()
trainer = Trainer(callbacks=[hopyard], …)
trainer.fit(model, loader, ckpt_path=hopyard.last_checkpoint())
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.sdk import rng_state
from hopyard.sdk.checkpoints import clear_remains, discard_folder
from hopyard.sdk.framework_loop import FrameworkLoop, checkpoint_folder, may_resume
from hopyard.sdk.restored_hyperparameters import Settings, apply_changes, capture_settings

try:
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        raise ModuleNotFoundError(name="lightning")  # both are installed, and the script uses the other one
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.loggers.logger import DummyLogger
except ModuleNotFoundError as error:
    if error.name not in ("lightning", "lightning.pytorch"):
        raise
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.callbacks import Checkpoint
    from pytorch_lightning.loggers import TensorBoardLogger
    from pytorch_lightning.loggers.logger import DummyLogger

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
        self._built: Settings = {}  # of the optimizers and schedulers, as the script built them
        self._saved: int | None = None
        self.best_model_path = ""  # of the newest checkpoint: `trainer.test()` loads it if no other is better

    def last_checkpoint(self) -> str | None:
        """Returns the newest checkpoint of this run in the folder, for `ckpt_path`. None at the beginning of
        a run, and under plain `python`."""
        steps = self._saved_steps() if may_resume() else []
        return str(self._path(steps[-1])) if steps else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the random number generators, which Lightning does not save, and the settings
        with which the script built its optimizers."""
        states = rng_state.capture()
        if "numpy" in states:  # as plain values, which `torch.load` accepts
            kind, keys, *rest = states["numpy"]
            states["numpy"] = (kind, [int(key) for key in keys], *rest)
        return {"random_state": states, "is_in_epoch": self._is_in_epoch, "built": self._built}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # the last one: its checkpoints hold the state of the others, and the trainer takes the best model of
        # the first callback for checkpoints
        trainer.callbacks = [*(each for each in trainer.callbacks if each is not self), self]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._loop, self._is_in_epoch = FrameworkLoop("lightning", self.folder), False
        self._loop.warn_of_shared_folder()
        self._follow_metrics(trainer, self._loop)
        self._built = capture_settings(_tuned_objects(trainer))  # their states are not restored yet
        path = Path(trainer.ckpt_path or "")
        self._saved = _step_of(path.name) if path.parent == Path(self.folder) else None
        self.best_model_path = "" if self._saved is None else str(path)
        if not self._restored.get("is_in_epoch"):
            self._restore_generators(trainer)  # before the data loader of the next epoch draws its order

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_generators(trainer)
        if self._stop_in_epoch is None:
            loaders = trainer.fit_loop._combined_loader.flattened
            self._stop_in_epoch = all(hasattr(loader, "load_state_dict") for loader in loaders)
        if self._loop is not None:
            tuned = _tuned_objects(trainer)
            built = self._restored.pop("built", None)
            if built:  # a fork or `hop set` may have changed the rate since the checkpoint
                apply_changes(tuned, self._built, built)
            self._loop.begin(tuned, self._built)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow_metrics(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow_metrics(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        # not between the batches of one optimizer step: no checkpoint holds the gradients
        may_stop = bool(self._stop_in_epoch) and not trainer.fit_loop.epoch_loop._should_accumulate()
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

    def _follow_metrics(self, trainer: Trainer, loop: FrameworkLoop | None = None) -> None:
        """Adds one logger to those of the trainer, also for `validate` and `test` without a training."""
        others = [each for each in trainer.loggers if not isinstance(each, _HopLogger)]
        if loop is not None or len(others) == len(trainer.loggers):
            loop = loop or FrameworkLoop("lightning")
            is_recorded = loop.follows_event_files and any(map(_is_event_logger, others))
            own = _HopLogger(loop, trainer.default_root_dir, is_recorded=is_recorded)
            trainer.loggers = [*others, own]

    def _save(self, trainer: Trainer) -> None:
        self._saved = trainer.global_step
        trainer.save_checkpoint(self._path(self._saved), weights_only=False)
        self.best_model_path = str(self._path(self._saved))
        # those of a later step are of another training in this folder
        earlier = [step for step in self._saved_steps() if step <= self._saved]
        for step in earlier[: -self._keep] if trainer.is_global_zero else ():
            path = self._path(step)
            with suppress(FileNotFoundError, NotADirectoryError):
                discard_folder(str(path)) if path.is_dir() else path.unlink()
        if trainer.is_global_zero:
            clear_remains(str(self.folder), _PREFIX)

    def _restore_generators(self, trainer: Trainer) -> None:
        states = self._restored.pop("random_state", None)
        if states is not None and trainer.world_size == 1:  # the state is that of rank 0
            rng_state.restore(states)

    def _path(self, step: int) -> Path:
        return Path(self.folder, f"{_PREFIX}{step}{_SUFFIX}")

    def _saved_steps(self) -> list[int]:
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        return sorted(step for name in names if (step := _step_of(name)) is not None)


def _tuned_objects(trainer: Trainer) -> dict[str, Any]:
    """Returns the optimizers and schedulers, by name."""
    tuned = [*trainer.optimizers, *(each.scheduler for each in trainer.lr_scheduler_configs)]
    return {f"optimizer_{number}": value for number, value in enumerate(tuned)}


def _is_event_logger(logger: Any) -> bool:
    return isinstance(logger, TensorBoardLogger) and "://" not in str(logger.save_dir)


def _step_of(name: str) -> int | None:
    """Returns the step in the name of a checkpoint of the callback."""
    number = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return int(number) if name == f"{_PREFIX}{number}{_SUFFIX}" and number.isdecimal() else None


class _HopLogger(DummyLogger):  # type: ignore[misc]
    """Gets the metrics and hyperparameters that Lightning gives to loggers.

    It may be the only logger of the trainer: a model that uses the experiment of its logger then logs nothing
    there. save_dir: of a trainer without loggers.
    """

    name, version, save_dir = "hopyard", 0, ""

    def __init__(self, loop: FrameworkLoop, save_dir: str, *, is_recorded: bool) -> None:
        """is_recorded: the run reads the metrics from the event files of another logger."""
        super().__init__()
        self._loop, self.save_dir, self._is_recorded = loop, save_dir, is_recorded

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self._loop.session.group.rank() == 0 and not self._is_recorded:
            self._loop.log(metrics, step or 0)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self._loop.record_params(dict(params) if isinstance(params, Mapping) else vars(params))
