"""Changes of a run that its user, or an administrator of its queue, requests."""

from __future__ import annotations

from typing import Any

from hopyard.domain.duration_text import format_whole_duration
from hopyard.domain.run import Run, RunPhase, RunSpec
from hopyard.errors import Conflict

UNLIMITED = "none"
_FIELD_LABELS = {
    "cpu_milli": "CPUs",
    "memory_bytes": "memory",
    "gpus": "GPUs",
    "gpu_models": "GPU models",
    "gpu_milli": "part of a GPU",
    "gpu_memory_bytes": "memory of a GPU",
    "extras": "resources",
}


def changes_scheduling(before: Run, after: Run) -> bool:
    """Returns whether the change affects the gangs that a policy sees. Such changes are allowed only for
    waiting runs."""
    return before.held_by != after.held_by or _scheduling_fields(before.spec) != _scheduling_fields(
        after.spec
    )


def not_holdable_conflict(run: str, phase: RunPhase) -> Conflict:
    """Returns the error for a run that will not return to the queue."""
    state = "waits in the queue" if phase is RunPhase.QUEUED else "is being stopped"
    return Conflict(
        f"run {run} has ended" if phase.is_final else f"run {run} {state}",
        hints=(f"see its phase with `hop info {run}`",),
    )


def not_pending_conflict(run: Run, phase: RunPhase) -> Conflict:
    """Returns the error for a change that is too late."""
    hints = (
        "change its name, its tags or its note: these can change in every phase",
        f"run it again with changes: `hop fork {run.name}`",
    )
    return Conflict(
        f"run {run.name} does not wait: it {'has ended' if phase.is_final else f'is {phase}'}, so its "
        "requests cannot change",
        hints=hints,
    )


def not_archivable_conflict(run: Run) -> Conflict:
    """Returns the error for a run that listings must show, because it uses resources or waits for them."""
    return Conflict(
        f"run {run.name} has not ended, so it cannot be archived",
        hints=(f"stop it first: `hop stop {run.name}`",),
    )


def concurrent_change_conflict(run: Run) -> Conflict:
    return Conflict(
        f"run {run.name} was changed at the same time",
        hints=("check it with `hop info`, and send the change again",),
    )


def _scheduling_fields(spec: RunSpec) -> tuple[object, ...]:
    return (spec.gang_roles(), spec.queue, spec.priority, spec.time_limit_s)


def describe_changes(before: Run, after: Run) -> list[str]:
    """Returns descriptions of all differences, such as `queue a -> b`."""
    old, new = before.spec, after.spec
    changes = [
        f"{field_name} {old_value} -> {new_value}"
        for field_name, old_value, new_value in (
            ("queue", old.queue, new.queue),
            ("priority", old.priority, new.priority),
            ("time limit", _format_seconds(old.time_limit_s), _format_seconds(new.time_limit_s)),
            ("name", _quote(old.label), _quote(new.label)),
            ("note", _quote(before.note), _quote(after.note)),
        )
        if old_value != new_value
    ]
    for role, new_role in zip(old.roles, new.roles, strict=True):
        role_suffix = f" of {role.name}" if len(old.roles) > 1 else ""
        for field in role.resources.__dataclass_fields__:
            old_value, new_value = getattr(role.resources, field), getattr(new_role.resources, field)
            if old_value != new_value:
                changes.append(
                    f"{_FIELD_LABELS.get(field, field)}{role_suffix} {_format_amount(field, old_value)} -> "
                    f"{_format_amount(field, new_value)}"
                )
    changes += [
        f"tag {key} {_format_tag(old.tags.get(key))} -> {_format_tag(new.tags.get(key))}"
        for key in sorted({*old.tags, *new.tags})
        if old.tags.get(key) != new.tags.get(key)
    ]
    if before.archived != after.archived:
        changes.append("archived" if after.archived else "unarchived")
    if before.held_by is None and after.held_by is not None:
        changes.append("held")
    if before.held_by is not None and after.held_by is None:
        changes.append("released")
    return changes


def _format_seconds(seconds: float | None) -> str:
    return (
        UNLIMITED if seconds is None else format_whole_duration(seconds) if seconds >= 1 else f"{seconds:g} s"
    )


def _format_amount(field: str, value: Any) -> str:
    """Formats an amount of resources in the units of the request."""
    if field in ("cpu_milli", "gpu_milli"):
        return f"{value / 1000:g}"
    if field in ("memory_bytes", "gpu_memory_bytes"):
        return (
            f"{value / 1024**3:.4g} GiB"
            if value >= 1024**3
            else f"{value / 1024**2:.4g} MiB"
            if value
            else "none"
        )
    if field == "extras":
        return ", ".join(f"{name}={count}" for name, count in value) or "none"
    return _format_list(value)


def _quote(text: str) -> str:
    return f"`{text}`" if text else "none"


def _format_tag(value: str | None) -> str:
    """Formats a tag: an empty tag differs from a missing one."""
    return "none" if value is None else f"`{value}`"


def _format_list(value: object) -> str:
    return " or ".join(map(str, value)) or "any" if isinstance(value, tuple) else str(value)
