"""A callback for `fit` of Keras 3.

model.fit(x, y, epochs=20, callbacks=[HopCallback()])
"""

from __future__ import annotations

import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras

from hopyard.sdk import rng_state
from hopyard.sdk.checkpoints import clear_remains, discard_folder
from hopyard.sdk.framework_loop import FrameworkLoop, checkpoint_folder, may_resume
from hopyard.sdk.restored_hyperparameters import Settings, apply_changes, capture_settings

_PREFIX = "epoch_"
_RNG_FILE = "random-state.pkl"
_BUILT = "built"  # in this file: the settings of the optimizer as the script built it


class HopCallback(keras.callbacks.Callback):  # type: ignore[misc]  # its base has no types here
    """Makes each batch a safe point, logs the metrics of each epoch, and saves after each epoch.

    folder: for the checkpoints, by default `$HOPYARD_RUN_DIR`. The second `fit` of a script has its own
    folder in it, `fit-2`. every: epochs from one checkpoint to the next. keep: how many stay in the folder.
    Keras can continue only at the beginning of an epoch, so a preemption ends the training after the current
    one. If the grace period is over before, the next attempt repeats the epochs since the newest checkpoint.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, every: int = 1, keep: int = 2
    ) -> None:
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(f"HopCallback: every={every}, keep={keep}: both must be at least 1")
        self.folder = self._first_folder = str(checkpoint_folder(folder))
        self._every, self._keep = every, keep
        self._loop: FrameworkLoop | None = None
        self._batches, self._epochs = 0, 0
        self._saved: int | None = None
        self._built: Settings = {}

    def last_checkpoint(self) -> str | None:
        """Returns the folder of the newest checkpoint of this run, which `fit` continues from. None at the
        beginning of a run, and under plain `python`."""
        epochs = self._saved_epochs() if may_resume() else []
        return str(self._path(epochs[-1])) if epochs else None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._loop = FrameworkLoop("keras", self._first_folder)
        # the next attempt calls `fit` in the same order
        own = () if self._loop.number == 1 else (f"fit-{self._loop.number}",)
        self.folder = os.path.join(self._first_folder, *own)
        self._batches = self._epochs = 0
        self._saved = None
        self._loop.record_params(_hyperparameters(self.model, self.params))
        self._built = capture_settings({"optimizer": _OptimizerSettings(self.model)})
        newest, states = self.last_checkpoint(), dict[str, Any]()
        if newest is not None:
            self._saved = self._epochs = int(Path(newest).name.removeprefix(_PREFIX))
            self._backup(newest).on_train_begin()
            if Path(newest, _RNG_FILE).exists():
                states = pickle.loads(Path(newest, _RNG_FILE).read_bytes())
            if self._loop.session.group.rank() == 0:
                rng_state.restore(states)
        tuned = {"optimizer": _OptimizerSettings(self.model)}
        if _BUILT in states:  # a fork or `hop set` may have changed the rate since the checkpoint
            apply_changes(tuned, self._built, states[_BUILT])
        self._loop.begin(tuned, self._built)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._batches += 1
        if self._loop is not None and self._loop.reach(self._batches, may_stop=False):
            self._loop.exit(self._saved)  # it was paused inside the epoch, which the next attempt repeats

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._loop is None:
            return
        self._epochs = epoch + 1
        self._loop.log(logs or {}, epoch)
        self._loop.report_progress(self._epochs, self.params.get("epochs"), "epoch")
        is_stopping = self._loop.reach(self._batches)
        if is_stopping or self._epochs % self._every == 0 or self._epochs == self.params.get("epochs"):
            self._save()
        if is_stopping:
            self._loop.exit(self._saved)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._loop is not None:
            self._loop.end()
            self._loop = None

    def _save(self) -> None:
        """Writes the checkpoint of the completed epochs: complete or absent."""
        self._saved = self._epochs
        if self._loop is None or self._loop.session.group.rank() != 0:
            return
        scratch, final = Path(self.folder, f"tmp-{_PREFIX}{self._epochs}"), self._path(self._epochs)
        shutil.rmtree(scratch, ignore_errors=True)
        clear_remains(self.folder, _PREFIX)
        discard_folder(str(final))
        scratch.mkdir(parents=True)
        (scratch / _RNG_FILE).write_bytes(pickle.dumps({**rng_state.capture(), _BUILT: self._built}))
        self._backup(str(scratch)).on_epoch_end(self._epochs - 1)
        scratch.rename(final)
        # those of a later epoch are of another training in this folder
        earlier = [epoch for epoch in self._saved_epochs() if epoch <= self._epochs]
        for epoch in earlier[: -self._keep]:
            discard_folder(str(self._path(epoch)))

    def _backup(self, folder: str) -> Any:
        """Returns Keras's own callback, which writes and reads the files of one checkpoint."""
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        backup.set_model(self.model)
        return backup

    def _path(self, epoch: int) -> Path:
        return Path(self.folder, f"{_PREFIX}{epoch}")

    def _saved_epochs(self) -> list[int]:
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        numbers = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
        return sorted(int(number) for number in numbers if number.isdecimal())


class _OptimizerSettings:
    """Gives the learning rate of the optimizer of a model in the form of PyTorch's, so that it follows `hop
    set`. One with a schedule has no rate of its own."""

    def __init__(self, model: Any) -> None:
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of mixed precision
        is_constant = isinstance(getattr(optimizer, "_learning_rate", None), keras.Variable)
        self.param_groups = [_Settings(model, optimizer)] if is_constant else []


class _Settings(dict[str, Any]):
    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__(lr=float(keras.ops.convert_to_numpy(optimizer.learning_rate)))
        self._model, self._optimizer = model, optimizer

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if hasattr(self._model, "jax_state_sync"):  # between two batches JAX has the variables elsewhere
            self._model.jax_state_sync()
        self._optimizer.learning_rate = value


def _hyperparameters(model: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the optimizer and the numbers of epochs and steps."""
    settings = {"optimizer": model.optimizer.name}
    with suppress(Exception):  # of a schedule without `get_config`
        settings |= model.optimizer.get_config()
    return {**{k: v for k, v in settings.items() if k != "name"}, "epochs": params.get("epochs")}
