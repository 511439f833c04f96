"""Applies the commands of users to this process at a safe point, and answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hopyard.errors import SpecError
from hopyard.sdk.bound_objects import BoundObjects, bound_objects, built_settings
from hopyard.sdk.command_file import CommandLine
from hopyard.sdk.live_params import LiveParams, recorded_changes
from hopyard.sdk.live_settings import follow_in_optimizers
from hopyard.sdk.restored_hyperparameters import Settings, capture_settings
from hopyard.sdk.resumable_loop import Loop
from hopyard.sdk.safe_points import SafePointAction, SafePoints
from hopyard.sdk.warn_once import warn_once

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue


class LiveControl:
    """The commands of one process.

    declared: the recorded parameters, which change. record: appends an event, in the process of rank 0.
    """

    def __init__(
        self, bound: BoundObjects, declared: dict[str, ParamValue], record: Callable[..., object]
    ) -> None:
        self.params, self.is_paused = LiveParams(), False
        self.while_paused: Callable[[], None] = lambda: None  # called often while the script is paused
        self._bound, self._declared, self._record = bound, declared, record
        self._framework_objects: dict[str, Any] = {}
        self._framework_settings: Settings = {}

    def follow(self, objects: Mapping[str, Any], built: Settings | None = None) -> None:
        """Lets optimizers and schedulers of a framework follow changed parameters, as bound ones do. No
        checkpoint of Hopyard holds them. built: their settings as the script built them, which change as
        well; by default those of now."""
        self._framework_objects = dict(objects)
        self._framework_settings = capture_settings(objects) if built is None else built

    def obey(
        self,
        safe_points: SafePoints,
        action: SafePointAction | None,
        *,
        step: int,
        loops: Iterable[Loop[Any]] = (),
    ) -> bool:
        """Does what the gang has agreed on, and waits while the run is paused. Returns whether this process
        must save its checkpoint and end.

        step: the completed iterations, or the step that the script has logged.
        """
        if action is None:
            return False
        while action is SafePointAction.COMMANDS:
            for command in safe_points.take_commands():
                self._apply(command, step, list(loops), safe_points)
            if not self.is_paused:
                safe_points.leave()
                return False
            action = safe_points.wait_for_action(self.while_paused)
        if action is None:  # a signal ends it
            self.is_paused = False
            safe_points.leave()
            return False
        return True

    def _apply(
        self, command: CommandLine, step: int, loops: list[Loop[Any]], safe_points: SafePoints
    ) -> None:
        kind, user, reports = command["kind"], command.get("user") or "a user", safe_points.answers
        fields: dict[str, object] = {}
        try:
            if "refused" in command:
                raise SpecError(command["refused"])
            if kind == "pause":
                self.is_paused, answer = True, "paused"
            elif kind == "resume":
                self.is_paused, answer = False, "resumed"
            elif kind == "set":
                answer, fields = self._set(command["arguments"], loops)
            else:
                raise SpecError(f"this version of hopyard in the run has no command `{kind}`")
        except SpecError as error:
            if reports:
                safe_points.refuse(command, error.message)
                self._answer(command, "refused", step, error.message)
                warn_once(f"step {step}: {kind} of {user} is refused: {error.message}")
            return
        if reports:
            if kind == "set":
                self._record("params", values=self._declared)
            self._answer(command, "applied", step, answer, **fields)
            warn_once(f"step {step}: {answer} by {user}")

    def _answer(self, command: CommandLine, state: str, step: int, answer: str, **fields: Any) -> None:
        self._record("command", number=command["number"], state=state, step=step, answer=answer, **fields)

    def _set(self, arguments: dict[str, ParamValue], loops: list[Loop[Any]]) -> tuple[str, dict[str, object]]:
        values, scaled = self.params.values(), self.params.scaled_values()
        changes = self.params.change(self.params.convert(arguments))
        effective = {
            name: (scaled[name], value)
            for name, value in self.params.scaled_values().items()
            if value != scaled[name]
        }
        recorded = recorded_changes(changes)
        self._declared.update({name: after for name, (_, after) in recorded.items()})
        texts = [f"{name} {_text(before)} -> {_text(after)}" for name, (before, after) in recorded.items()]
        texts += [
            f"effective {name} {_text(before)} -> {_text(after)}"
            for name, (before, after) in effective.items()
        ]
        objects = {**self._framework_objects, **bound_objects(self._bound)}
        built = {**self._framework_settings, **built_settings(self._bound)}
        try:
            texts += follow_in_optimizers(objects, built, changes, effective, values)
        except Exception as error:  # of an optimizer of any library: a training must not end for a command
            texts.append(f"an optimizer could not be changed: {type(error).__name__}: {str(error)[:200]}")
        for name, (before, _) in changes.items():
            fixed = next(
                (loop for loop in loops if type(before) is int and loop.total == before and before > 1), None
            )
            if fixed is not None:
                texts.append(
                    f"note: the current loop `{fixed.name}` keeps its {fixed.total} iterations; {name} "
                    "applies to later loops"
                )
        return "; ".join(texts), {"changes": {name: list(change) for name, change in recorded.items()}}


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
