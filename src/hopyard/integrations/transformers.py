"""A callback for the `Trainer` of Hugging Face's transformers.

hopyard = HopCallback()
trainer = Trainer(model, TrainingArguments(hopyard.folder, …), callbacks=[hopyard], …)
trainer.train(resume_from_checkpoint=hopyard.last_checkpoint())
"""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, fields
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hopyard.sdk.framework_loop import FrameworkLoop, checkpoint_folder, may_resume
from hopyard.sdk.warn_once import warn_once

_STATE_FILE = "trainer_state.json"  # the last file of a checkpoint
_PREFIX = "checkpoint-"
# shown also where they have their default
_PARAMS = (
    "learning_rate",
    "weight_decay",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
)
# paths and names, and secrets
_NOT_PARAMS = ("output_dir", "logging_dir", "run_name", "local_rank", "hub_token", "push_to_hub_token")


class HopCallback(TrainerCallback):  # type: ignore[misc]  # its base has no types here
    """Makes each optimizer step a safe point, and logs the metrics of the trainer.

    folder: for the trainer's checkpoints, as its `output_dir`; by default `$HOPYARD_RUN_DIR`. At a preemption
    the trainer saves its checkpoint of this step, and the script ends.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = str(checkpoint_folder(folder))
        self._loop: FrameworkLoop | None = None
        self._is_stopping = False

    def last_checkpoint(self) -> str | None:
        """Returns the newest complete checkpoint of this run in the folder, for `resume_from_checkpoint`.
        None at the beginning of a run, and under plain `python`."""
        names = os.listdir(self.folder) if may_resume() and os.path.isdir(self.folder) else []
        numbers = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
        steps = sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)
        paths = (os.path.join(self.folder, f"{_PREFIX}{step}") for step in steps)
        return next(filter(_is_complete, paths), None)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._loop, self._is_stopping = FrameworkLoop("transformers", self.folder), False
        self._loop.warn_of_shared_folder()
        if os.path.realpath(args.output_dir or "") != os.path.realpath(self.folder):
            warn_once(
                f"the trainer saves to {args.output_dir}, and last_checkpoint() looks in {self.folder}: a "
                "resumed run would begin at the beginning; use TrainingArguments(callback.folder, …) or "
                "HopCallback(output_dir)",
                kind="output-dir",
            )
        self._loop.record_params(_changed_arguments(args))
        self._loop.begin({name: kwargs.get(name) for name in ("optimizer", "lr_scheduler")})
        self._loop.report_progress(state.global_step, state.max_steps, "step")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Requests a checkpoint where the run is preempted; `on_save` follows when it is complete."""
        if self._loop is not None and not self._is_stopping:
            self._is_stopping = self._loop.reach(state.global_step)
        if self._is_stopping:
            control.should_save = True
        return control

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._loop is not None and self._is_stopping:
            self._loop.exit(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero:
            return
        loop = self._loop or FrameworkLoop("transformers")  # an evaluation without a training
        loop.log(logs or {}, state.global_step)
        if self._loop is not None:
            loop.report_progress(state.global_step, state.max_steps, "step")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._loop is not None:
            self._loop.end()
            self._loop = None


def _is_complete(checkpoint: str) -> bool:
    """Returns whether the last file of a checkpoint is there, and whole: its writer may have been killed."""
    try:
        with open(os.path.join(checkpoint, _STATE_FILE), encoding="utf-8") as file:
            json.load(file)
    except (OSError, ValueError):
        return False
    return True


def _changed_arguments(args: TrainingArguments) -> dict[str, Any]:
    """Returns the arguments that differ from their defaults, and the usual hyperparameters."""
    changed = {}
    for field in fields(args):
        value = getattr(args, field.name, None)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name not in _NOT_PARAMS and (value != default or field.name in _PARAMS):
            changed[field.name] = value
    return changed
