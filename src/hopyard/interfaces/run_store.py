from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from hopyard.domain.attempt import AttemptPhase, Exit
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId, RunName, check_name, check_run_id
from hopyard.domain.metric_extremes import Extremes, StepValue
from hopyard.domain.run import Attempt, ParamValue, Run, RunEvent, RunEventKind, RunPhase, RunSpec
from hopyard.domain.run_query import RunValues
from hopyard.domain.script_tags import ScriptTags

MAX_UNSTORED_MESSAGES = 20  # sentences that are kept per run


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to create. Raises SpecError for an id, user or project that is no legal folder name or
    address."""

    id: RunId
    user: str
    spec: RunSpec
    offline: bool = False  # created as running without an attempt until `finish_offline`, never queued

    def __post_init__(self) -> None:
        check_run_id(self.id)
        check_name(self.user, subject="user")
        check_name(self.spec.project, subject="project")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter; all conditions that are set must hold.

    label: exact match. text: a part of the name, label or a tag. parent: only trials of this study.
    run_folder: only runs with these stored files. forked_from: only forks of one of these runs. studies: only
    runs that are studies. trials: False excludes the runs of trials. archived: only archived runs, or none of
    them. starred_by: only runs that this user has starred. offline: only runs that were recorded
    offline, or none of them. brief: specs, params and summaries are truncated as in `domain.spec_summary`, so
    that a page stays small.
    """

    phases: frozenset[RunPhase] | None = None
    user: str | None = None
    project: str | None = None
    label: str | None = None
    tags: Mapping[str, str] | None = None
    dataset: str | None = None
    text: str | None = None
    limit: int = 50
    before: RunId | None = None  # for the next page: only runs older than this
    id_prefix: str | None = None
    number: int | None = None  # of the name
    ids: frozenset[RunId] | None = None  # a few hundred at most
    parent: RunId | None = None
    run_folder: Digest | None = None
    forked_from: frozenset[RunId] | None = None
    studies: bool = False
    trials: bool = True
    archived: bool | None = None
    starred_by: str | None = None
    offline: bool | None = None
    brief: bool = False


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The part of a run that a leaderboard needs: thousands of runs are ranked to show a few. latest: the
    newest (step, value) of each metric, only if requested; likewise `extremes`, where they are known."""

    id: RunId
    submitted_at: datetime
    summary: Mapping[str, float]
    latest: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    extremes: Mapping[str, Extremes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """An attempt with the run to which it belongs. queue: the run's queue now."""

    run: RunId
    name: RunName
    queue: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class AttemptFilter:
    """Attempts that held resources at some time between `since` and `until`; all conditions that are set must
    hold.

    queues: only runs that are in one of these queues now. node: only attempts with a replica there. before:
    the placement time and the id of the last attempt of the previous page.
    """

    since: datetime
    until: datetime
    queues: frozenset[str] | None = None
    node: str | None = None
    before: tuple[datetime, AttemptId] | None = None
    limit: int = 1000


class RunStore(Protocol):
    """Runs and their records. The ClusterStore changes phases."""

    async def create(self, runs: Sequence[NewRun], /, *, now: datetime) -> Sequence[Run]:
        """Creates runs durably, all or none; each gets the next number of its user and project. Concurrent
        calls share a commit.

        An existing id with an equal spec returns the existing run (a retry); else raises Conflict.
        """
        ...

    async def get(self, run: RunId, /) -> Run: ...
    async def find_existing(self, runs: Sequence[RunId], /) -> frozenset[RunId]:
        """Returns the ids that exist."""
        ...

    async def find_by_name(self, name: RunName, /) -> Run | None: ...
    async def list(self, where: RunFilter, /) -> Sequence[Run]:
        """Returns the matching runs, newest first."""
        ...

    async def query_values(
        self, where: RunFilter, /, *, now: datetime | None
    ) -> Sequence[tuple[RunId, RunValues]]:
        """Returns the ids of the matching runs, newest first, with the values for a query at the time `now`.
        Params and tags may be truncated as in a brief listing. now: None is faster, if neither `age` nor
        `took` is looked at: all runs lack an `age`, and running ones a `took`."""
        ...

    async def count_by_phase(self) -> Mapping[RunPhase, int]:
        """Returns the number of runs in each phase that has any, without runs that are being synced."""
        ...

    async def count_trials(self, studies: Sequence[RunId], /) -> Mapping[RunId, Mapping[RunPhase, int]]:
        """Returns, for each of these studies with trials, the number of their runs in each phase that has
        any."""
        ...

    async def list_orphans(self) -> Sequence[RunId]:
        """Returns the runs that have not ended although their parent has ended or is deleted."""
        ...

    async def attempts(self, run: RunId, /) -> Sequence[Attempt]:
        """Returns the attempts in order of their number."""
        ...

    async def attempts_between(self, where: AttemptFilter, /) -> Sequence[RunAttempt]:
        """Returns the matching attempts of all runs, the newest placement first, then by descending id."""
        ...

    async def events(
        self, run: RunId, /, *, after: int = 0, limit: int | None = None, newest: bool = False
    ) -> Sequence[RunEvent]:
        """Returns the decisions about a run, oldest first: promises, their breaches, preemptions.

        after: skips this number of events. limit: the maximum number. newest: returns the last events instead
        of the first. Raises NotFound.
        """
        ...

    async def events_of(
        self, runs: Sequence[RunId], kind: RunEventKind, /
    ) -> Mapping[RunId, Sequence[RunEvent]]:
        """Returns the events of one kind of these runs, oldest first, without runs that have none."""
        ...

    async def record_event(self, run: RunId, event: RunEvent, /) -> None:
        """Adds an event unless it exists already. Raises NotFound."""

    async def set_starred(self, run: RunId, user: str, starred: bool, /) -> None:
        """Stars a run for this user, or removes the star. Idempotent. Raises NotFound."""

    async def starred_of(self, user: str, runs: Sequence[RunId], /) -> frozenset[RunId]:
        """Returns those of these runs that the user has starred."""
        ...

    async def delete(self, run: RunId, /) -> None:
        """Deletes a final run with its attempts and checkpoints. Raises Conflict while it is live,
        NotFound."""

    # Writes of an attempt about its run. `attempt`: the reporting attempt. They raise Conflict, with
    # nothing written, if the run has a later attempt; and NotFound.

    async def record_params(
        self, run: RunId, params: Mapping[str, ParamValue], /, *, attempt: AttemptId | None = None
    ) -> None: ...
    async def record_summary(
        self, run: RunId, values: Mapping[str, float], /, *, attempt: AttemptId | None = None
    ) -> None:
        """Merges values into the run's summary by name, with the limits of `domain.run_values.merge_values`;
        likewise for params."""

    async def record_metrics(
        self,
        run: RunId,
        latest: Mapping[str, tuple[int, float]],
        /,
        *,
        extremes: Mapping[str, Extremes] | None = None,
        attempt: AttemptId | None = None,
        replace_all: bool = False,
    ) -> None:
        """Stores the latest (step, value) of each metric, merged by name. extremes: of these metrics; those
        of a metric without any become unknown. replace_all: removes all other metrics."""

    async def record_extremes(
        self, run: RunId, metric: str, extremes: Extremes, /, *, latest: StepValue
    ) -> None:
        """Stores what was read from a curve, unless the latest value of the metric has changed since. Does
        nothing for a run that does not exist."""

    async def latest_metrics(
        self, runs: Sequence[RunId], /
    ) -> Mapping[RunId, Mapping[str, tuple[int, float]]]: ...
    async def record_machine_env(
        self, run: RunId, values: Mapping[str, str | None], /, *, attempt: AttemptId | None = None
    ) -> None:
        """Replaces the recorded variables of the machine that the run's processes got; None hides a value."""
        ...

    async def machine_env(self, run: RunId, /) -> Mapping[str, str | None]:
        """Returns the recorded variables; empty if there are none, or no such run."""
        ...

    async def record_tags(self, run: RunId, new: ScriptTags, /, *, attempt: AttemptId | None = None) -> None:
        """Sets tags and the note as in `domain.script_tags.apply_script_tags`."""

    async def script_tags(self, run: RunId, /) -> ScriptTags:
        """Returns what the script set through another library; empty if there is nothing, or no such run."""
        ...

    async def record_unstored(self, run: RunId, messages: Sequence[str], /) -> None:
        """Adds sentences about parts of the run that could not be stored, without duplicates, up to
        `MAX_UNSTORED_MESSAGES`."""

    async def record_artifact(
        self, run: RunId, manifest: Digest, /, *, attempt: AttemptId | None = None
    ) -> None: ...
    async def record_run_folder(
        self, run: RunId, manifest: Digest, size_bytes: int, /, *, attempt: AttemptId, progress: bool = False
    ) -> None:
        """Stores the files that the next attempt begins with. Raises NotFound, and Conflict for a superseded
        attempt.

        progress: they have a new checkpoint of the script. If they differ from the stored ones, earlier
        losses no longer count.
        """

    async def record_lock(
        self, run: RunId, lock: Digest, packages: Mapping[str, str], /, *, attempt: AttemptId | None = None
    ) -> None:
        """Stores the resolved environment in the run's spec."""

    async def record_packages(
        self, run: RunId, packages: Mapping[str, str], /, *, attempt: AttemptId | None = None
    ) -> None:
        """Stores the packages that the run's interpreter had at its start, in place of those of the
        submission."""

    async def record_checkpoint(self, checkpoint: Checkpoint, /) -> None:
        """Adds a checkpoint. It may replace one of the same (run, attempt, rank, step, path), see
        `Checkpoint.replaces`, and takes the mark as kept from it; else nothing changes. A late checkpoint
        of an earlier attempt is sorted before those of later attempts."""

    async def checkpoints(
        self, run: RunId, /, *, damaged: bool = False, own: bool = False
    ) -> Sequence[Checkpoint]:
        """Returns the usable checkpoints; with `damaged` also those found damaged, with `own` also those
        that the script saved itself.

        Sorted by the number of their attempt; those of one attempt in the order in which they were saved.
        """
        ...

    async def checkpoints_of(self, runs: Sequence[RunId], /) -> Mapping[RunId, Sequence[Checkpoint]]:
        """Returns the usable checkpoints of each run that has any, in the order of `checkpoints`."""
        ...

    async def set_checkpoint_kept(self, run: RunId, step: int, kept: bool, /) -> None: ...
    async def mark_damaged(self, run: RunId, step: int, detail: str, /, *, now: datetime) -> bool:
        """Marks the run's checkpoints of this step as damaged, and adds an event with this detail. Returns
        False if no usable one existed. Raises NotFound."""
        ...

    async def delete_checkpoints(
        self, run: RunId, steps: Sequence[int], /, *, own: bool | None = None
    ) -> None:
        """own: only those that the script saved itself, or only the others; None both."""

    async def record_synced(self, run: RunId, at: datetime, /) -> None:
        """Records that another part of an offline run arrived. Ignores a run that has ended."""
        ...

    async def finish_offline(
        self, run: RunId, phase: AttemptPhase, exit: Exit, /, *, started_at: datetime, ended_at: datetime
    ) -> None:
        """Adds the only attempt (number 1) and the end of an offline run. Idempotent."""

    async def list_summaries(
        self, dataset: str, /, *, limit: int, latest: bool = False, extremes: bool = False
    ) -> Sequence[RunSummary]:
        """Returns at most `limit` runs on this dataset that have a summary, newest first. latest: also runs
        that have logged metrics only."""
        ...
