"""The memory store's rows of a run and of its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from hopyard.domain.attempt import AttemptPhase, Exit, ReplicaStatus
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Promise
from hopyard.domain.command import Command
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import AttemptId, Digest, GangId, RunId, RunName
from hopyard.domain.metric_extremes import Extremes
from hopyard.domain.notification import Alert, Notification
from hopyard.domain.plan_record import HoldRecord
from hopyard.domain.queue import Amounts
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import (
    HELD_REASON,
    Attempt,
    ParamValue,
    Run,
    RunEvent,
    RunPhase,
    RunSpec,
    checked_transition,
    held_message,
    shown_phase,
)
from hopyard.domain.script_tags import ScriptTags


@dataclass(slots=True)
class AttemptRow:
    """amounts: its use of its queue's limits."""

    id: AttemptId
    number: int
    placement: Placement
    amounts: Amounts
    engine: str
    placed_at: datetime
    phase: AttemptPhase = AttemptPhase.STARTING
    replicas: tuple[ReplicaStatus, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit: Exit | None = None
    resumed_from_step: int | None = None
    saved_at: datetime | None = None
    preempted_for: GangId | None = None  # "" for no particular run
    preempt_reason: str = ""
    preempt_requested_at: datetime | None = None  # when the stop was requested
    stop_order: StopOrder | None = None  # of a user

    def to_attempt(self) -> Attempt:
        return Attempt(
            id=self.id,
            number=self.number,
            phase=self.phase.value,
            nodes=tuple(assignment.node for assignment in self.placement.assignments),
            gpus=tuple(assignment.gpus for assignment in self.placement.assignments),
            engine=self.engine,
            placed_at=self.placed_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            exit=self.exit,
            resumed_from_step=self.resumed_from_step,
            gpu_milli=tuple(assignment.gpu_milli for assignment in self.placement.assignments),
            counts=tuple(role.replicas for role in self.placement.gang.roles),
            saved_at=self.saved_at,
            preempted_for=None if self.preempted_for is None else RunId(self.preempted_for),
            preempt_reason=self.preempt_reason,
        )


CheckpointKey = tuple[AttemptId, int, int, str]  # attempt, rank, step, path


@dataclass(slots=True)
class RunRow:
    """submitted_spec: the spec at submission. gang: the gang that a policy sees."""

    id: RunId
    name: RunName
    submitted_spec: RunSpec
    spec: RunSpec
    gang: Gang
    submitted_at: datetime
    phase: RunPhase = RunPhase.QUEUED
    attempts: list[AttemptRow] = field(default_factory=list)
    losses: int = 0
    refusals: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit: Exit | None = None
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    summary: Mapping[str, float] = field(default_factory=dict)
    latest_metrics: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    extremes: Mapping[str, Extremes] = field(default_factory=dict)
    script_tags: ScriptTags = field(default_factory=ScriptTags)
    artifact: Digest | None = None
    run_folder: Digest | None = None
    run_folder_bytes: int = 0
    stop_requested: bool = False
    offline: bool = False
    synced_at: datetime | None = None
    held_by: str | None = None
    note: str = ""
    archived: bool = False
    starred_by: set[str] = field(default_factory=set)
    changed_at_version: bool = False  # its request differs from the submitted one
    unstored: tuple[str, ...] = ()
    machine_env: Mapping[str, str | None] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    damaged: set[CheckpointKey] = field(default_factory=set)
    events: list[RunEvent] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    # by key: when it arrived, and the alert
    alerts: dict[str, tuple[datetime, Alert]] = field(default_factory=dict)
    notifications: dict[tuple[str, str], Notification] = field(default_factory=dict)  # by key and target
    paused_at: datetime | None = None  # counts while its phase is RUNNING

    @property
    def shown_phase(self) -> RunPhase:
        return shown_phase(self.phase, is_paused=self.paused_at is not None)

    def set_phase(self, phase: RunPhase) -> None:
        """Sets the phase. Raises Conflict for an illegal change."""
        self.phase = checked_transition(self.phase, phase)

    @property
    def attempt(self) -> AttemptRow | None:
        return self.attempts[-1] if self.attempts else None

    def all_checkpoints(self) -> list[Checkpoint]:
        return [
            replace(
                checkpoint,
                damaged=checkpoint_key(checkpoint) in self.damaged,
            )
            for checkpoint in self.checkpoints
        ]

    def intact_checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints that are not known to be damaged."""
        return [checkpoint for checkpoint in self.all_checkpoints() if not checkpoint.damaged]

    def usable_checkpoints(self) -> list[Checkpoint]:
        """Returns the intact ones that an attempt can resume from: not of the script itself."""
        return [checkpoint for checkpoint in self.intact_checkpoints() if not checkpoint.path]

    def to_run(self, hold: HoldRecord | None, promise: Promise | None) -> Run:
        is_held = self.held_by is not None and self.phase is RunPhase.QUEUED
        return Run(
            id=self.id,
            name=self.name,
            spec=self.spec,
            phase=self.shown_phase,
            submitted_at=self.submitted_at,
            attempt=self.attempts[-1].to_attempt() if self.attempts else None,
            started_at=self.started_at,
            ended_at=self.ended_at,
            exit=self.exit,
            params=self.params,
            summary=self.summary,
            artifact=self.artifact,
            run_folder=self.run_folder,
            run_folder_bytes=self.run_folder_bytes,
            stop_requested=self.stop_requested,
            hold_reason=HELD_REASON if is_held else "" if hold is None else str(hold.reason),
            hold_detail=held_message(self.held_by) if is_held else "" if hold is None else hold.detail,
            position=None if hold is None else hold.position,
            blocked_by=() if hold is None else hold.blocked_by,
            expected_at=None if hold is None else hold.expected_at,
            promised_at=None if promise is None else promise.start_at,
            preemptions=self.gang.preemptions,
            served_s=self.gang.served_s,
            offline=self.offline,
            synced_at=self.synced_at,
            held_by=self.held_by if is_held else None,
            note=self.note,
            archived=self.archived,
            paused_at=self.paused_at if self.shown_phase is RunPhase.PAUSED else None,
            unstored=self.unstored,
        )


def checkpoint_key(checkpoint: Checkpoint) -> CheckpointKey:
    """Returns what identifies a checkpoint of a run."""
    return checkpoint.attempt, checkpoint.rank, checkpoint.step, checkpoint.path
