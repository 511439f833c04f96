from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hopyard.domain.attempt import AttemptPhase, Exit
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId, RunName, check_name, check_run_id
from hopyard.domain.run import Attempt, ParamValue, Run, RunEvent, RunPhase, RunSpec

MAX_UNSTORED_MESSAGES = 20  # sentences that are kept of a run


@dataclass(frozen=True, slots=True)
class NewRun:
    """Raises SpecError for an id, user or project that no folder and no address could be named by."""

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
    """All that are given must hold. `label` and `text` are matched exactly / as part of a name, label or tag.

    parent: only trials of this study. studies: only runs that are studies. trials: False leaves out the runs
    of trials. offline: only runs that were recorded offline, or none of these.
    brief: specs, params and summaries come as `domain.spec_summary` has them, so that a page is light
    whatever is in it.
    """

    phases: frozenset[RunPhase] | None = None
    user: str | None = None
    project: str | None = None
    label: str | None = None
    tags: Mapping[str, str] | None = None
    dataset: str | None = None
    text: str | None = None
    limit: int = 50
    before: RunId | None = None  # for the next page: older than this
    id_prefix: str | None = None
    number: int | None = None  # of the name
    ids: frozenset[RunId] | None = None  # a few hundred at most
    parent: RunId | None = None
    studies: bool = False
    trials: bool = True
    offline: bool | None = None
    brief: bool = False


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The part of a run that a leaderboard needs: thousands of runs are ranked to show a few."""

    id: RunId
    submitted_at: datetime
    summary: Mapping[str, float]


class RunStore(Protocol):
    """Runs and what belongs to them. Changes of phase are the ClusterStore's."""

    async def create(self, runs: Sequence[NewRun], /, *, now: datetime) -> Sequence[Run]:
        """Accept runs durably, all or none; each gets the next number of its user and project. Many calls at
        once share a commit. Creating an id that exists with an equal spec returns the run that is there (a
        retry); else Conflict."""
        ...

    async def get(self, run: RunId, /) -> Run: ...
    async def find_existing(self, runs: Sequence[RunId], /) -> frozenset[RunId]:
        """Those of these that there are."""
        ...

    async def find_by_name(self, name: RunName, /) -> Run | None: ...
    async def list(self, where: RunFilter, /) -> Sequence[Run]:
        """Newest first."""
        ...

    async def count_by_phase(self) -> Mapping[RunPhase, int]:
        """How many runs there are in each phase that has any, without those that are being synced."""
        ...

    async def count_trials(self, studies: Sequence[RunId], /) -> Mapping[RunId, Mapping[RunPhase, int]]:
        """How many runs with each of these parents there are in each phase that has any; studies without any
        are left out."""
        ...

    async def list_orphans(self) -> Sequence[RunId]:
        """Runs that are not over though their parent is, or is gone."""
        ...

    async def attempts(self, run: RunId, /) -> Sequence[Attempt]:
        """In order of their number."""
        ...

    async def events(
        self, run: RunId, /, *, after: int = 0, limit: int | None = None, newest: bool = False
    ) -> Sequence[RunEvent]:
        """What was decided about it: promises, their breaches, preemptions; oldest first. after: without the
        first so many. limit: at most so many of them; newest: the last of them in place of the first. Raises
        NotFound."""
        ...

    async def record_event(self, run: RunId, event: RunEvent, /) -> None:
        """One that is there already is not there twice. Raises NotFound."""

    async def delete(self, run: RunId, /) -> None:
        """Forget a final run with its attempts and checkpoints.
        Raises Conflict while it is live, NotFound."""

    # What an attempt says of its run, five writes. `attempt`: which one says it. They raise Conflict, with
    # nothing written, when the run has a later one; and NotFound.

    async def record_params(
        self, run: RunId, params: Mapping[str, ParamValue], /, *, attempt: AttemptId | None = None
    ) -> None: ...
    async def record_summary(
        self, run: RunId, values: Mapping[str, float], /, *, attempt: AttemptId | None = None
    ) -> None:
        """Merge into the run's summary, name by name, as `domain.run_values.merge_values` does: parameters,
        too."""

    async def record_metrics(
        self,
        run: RunId,
        latest: Mapping[str, tuple[int, float]],
        /,
        *,
        attempt: AttemptId | None = None,
        replace_all: bool = False,
    ) -> None:
        """The latest (step, value) of each metric, merged name by name.
        replace_all: these are all that there are."""

    async def latest_metrics(
        self, runs: Sequence[RunId], /
    ) -> Mapping[RunId, Mapping[str, tuple[int, float]]]: ...
    async def record_machine_env(
        self, run: RunId, values: Mapping[str, str | None], /, *, attempt: AttemptId | None = None
    ) -> None:
        """Variables of the machine that the run's processes got, in the place of what was known; None hides a
        value."""
        ...

    async def machine_env(self, run: RunId, /) -> Mapping[str, str | None]:
        """What was recorded last; empty where nothing was, or there is no such run."""
        ...

    async def record_unstored(self, run: RunId, messages: Sequence[str], /) -> None:
        """What of it could not be stored, each sentence once; of very many the first
        `MAX_UNSTORED_MESSAGES`."""

    async def record_artifact(
        self, run: RunId, manifest: Digest, /, *, attempt: AttemptId | None = None
    ) -> None: ...
    async def record_lock(
        self, run: RunId, lock: Digest, packages: Mapping[str, str], /, *, attempt: AttemptId | None = None
    ) -> None:
        """Write the resolved environment into the run's spec."""

    async def record_checkpoint(self, checkpoint: Checkpoint, /) -> None:
        """Idempotent on (run, attempt, rank, step). One of an earlier attempt that comes late takes its place
        before all of a later one."""

    async def checkpoints(self, run: RunId, /, *, damaged: bool = False) -> Sequence[Checkpoint]:
        """Those that can be used; with `damaged` also those that turned out not to be.
        By the number of their attempt, those of one attempt in the order in which they were saved."""
        ...

    async def newest_steps(self, runs: Sequence[RunId], /) -> Mapping[RunId, int]:
        """The step of the last of `checkpoints` of each of these runs, for those that saved any: what their
        next attempt starts from."""
        ...

    async def set_checkpoint_kept(self, run: RunId, step: int, kept: bool, /) -> None: ...
    async def mark_damaged(self, run: RunId, step: int, detail: str, /, *, now: datetime) -> bool:
        """Use its checkpoints of this step no more, and tell it as an event with these words; False where
        there was none to use. Raises NotFound."""
        ...

    async def delete_checkpoints(self, run: RunId, steps: Sequence[int], /) -> None: ...
    async def record_synced(self, run: RunId, at: datetime, /) -> None:
        """Another part of the record of an offline run has come. One that is over stays as it is."""
        ...

    async def finish_offline(
        self, run: RunId, phase: AttemptPhase, exit: Exit, /, *, started_at: datetime, ended_at: datetime
    ) -> None:
        """Give an offline run its one attempt (number 1) and its end. Idempotent."""

    async def list_summaries(self, dataset: str, /, *, limit: int) -> Sequence[RunSummary]:
        """Runs on this dataset that have a summary, newest first, at most `limit`."""
        ...
