"""Access of a study's own token to the runs of its trials, and checks of their submission."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace

from hopyard.config.schemas.run_rules import run_spec_from_json
from hopyard.domain.ids import Digest, RunId
from hopyard.domain.run import DatasetRef, ResumeFrom, Run, RunPhase, RunSpec
from hopyard.errors import Conflict, Forbidden, NotFound
from hopyard.interfaces.run_store import RunFilter, RunStore
from hopyard.server.authentication import Caller

_MAX_CACHED_PARENTS = 4096
_PAGE_SIZE = 500
# Fields in which a trial's run may differ from the trial spec of its study.
_TRIAL_FIELDS = frozenset(
    {
        "params",
        "tags",
        "label",
        "resume",
        "forked_from",
        "initial_folder",
        "continued_runs",
        "parent",
        "queue",
        "priority",
        "datasets",
    }
)


async def study_lineage(runs: RunStore, study: RunId) -> frozenset[RunId]:
    """Returns the study, the study that it continues, the one that this continued, and so on, as far as they
    exist."""
    lineage: set[RunId] = set()
    current = study
    while current and current not in lineage:
        try:
            study_spec = (await runs.get(current)).spec.study
        except NotFound:
            break
        lineage.add(current)
        current = RunId("" if study_spec is None else study_spec.get("continues", ""))
    return frozenset(lineage)


class TrialParents:
    """Caches the study of each run. A driver needs it for every request, and it never changes."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._parent_cache: OrderedDict[RunId, RunId | None] = OrderedDict()

    async def belongs_to_study(self, run: RunId, study: RunId) -> bool:
        """Returns whether the run is the study, a study that it continues, or a trial of one of them.

        Raises NotFound if the run does not exist. A study must be able to distinguish its own deleted run
        from one that it may not see.
        """
        parent = await self.parent_of(run)
        if parent == study:
            return True
        lineage = await study_lineage(self._runs, study)
        if run in lineage or parent in lineage:
            return True
        await self._runs.get(run)
        return False

    async def is_evaluated_by(self, run: RunId, caller: RunId) -> bool:
        """Returns whether the calling run evaluates this run. Raises NotFound without the caller."""
        evaluation = (await self._runs.get(caller)).spec.evaluation
        return evaluation is not None and evaluation.run == run

    async def parent_of(self, run: RunId) -> RunId | None:
        """Returns the parent of the run; None if it has none, or does not exist."""
        if run in self._parent_cache:
            return self._parent_cache[run]
        try:
            parent = (await self._runs.get(run)).spec.parent
        except NotFound:
            return None
        self._parent_cache[run] = parent
        if len(self._parent_cache) > _MAX_CACHED_PARENTS:
            self._parent_cache.popitem(last=False)
        return parent


class RunReaders:
    """Caches which other runs each run may read, which never changes."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._read_by: OrderedDict[RunId, frozenset[RunId]] = OrderedDict()

    async def reads(self, run: RunId, reader: RunId) -> bool:
        """Returns whether the spec of the reader names the run."""
        known = self._read_by.get(reader)
        if known is None:
            try:
                known = frozenset((await self._runs.get(reader)).spec.reads)
            except NotFound:
                return False
            self._read_by[reader] = known
            if len(self._read_by) > _MAX_CACHED_PARENTS:
                self._read_by.popitem(last=False)
        return run in known


async def check_trial_submission(
    runs: RunStore, caller: Caller, spec: RunSpec, run_id: str | None
) -> tuple[RunSpec, str]:
    """Returns the accepted spec of a trial's run and its user. The trial waits in the queue of its study, as
    the same user.

    run_id: the requested ID; a run that was accepted with it before makes this a retry. Raises Forbidden
    unless the caller is a live study that submits one of its own trials.
    """
    if caller.run is None:
        raise Forbidden("parent: only a study can start its trials", hints=("remove `parent`",))
    if spec.parent != caller.run:
        raise Forbidden(
            "the token of a run can start trials of that run only", hints=("set `parent` to the study",)
        )
    study = await runs.get(caller.run)
    study_spec = study.spec.study
    if study_spec is None or study_spec.get("trial") is None:
        raise Forbidden("this run is not a study with trials that are separate runs")
    if study.phase.is_final or study.stop_requested:
        raise Conflict(f"the study {study.name} has ended")
    trial = run_spec_from_json(study_spec["trial"], path="study.trial")
    differing_fields = [
        field.name
        for field in fields(RunSpec)
        if field.name not in _TRIAL_FIELDS and getattr(spec, field.name) != getattr(trial, field.name)
    ]
    if differing_fields or not _has_same_datasets(spec.datasets, trial.datasets):
        raise Forbidden(
            f"a trial of {study.name} differs from the study's trial spec: "
            f"{', '.join(differing_fields) or 'datasets'}"
        )
    if not await _is_retry(runs, study, spec, run_id):
        if spec.resume is not None:
            await _check_resume(runs, study, spec.resume)
        if spec.initial_folder is not None:
            await _check_folder(runs, study, spec.initial_folder)
        if spec.continued_runs:
            await _check_continued(runs, study, spec)
    return replace(
        spec, datasets=trial.datasets, queue=study.spec.queue, priority=study.spec.priority
    ), study.name.user


def _has_same_datasets(requested: Sequence[DatasetRef], expected: Sequence[DatasetRef]) -> bool:
    return [(ref.name, ref.path) for ref in requested] == [(ref.name, ref.path) for ref in expected]


async def _is_retry(runs: RunStore, study: Run, spec: RunSpec, run_id: str | None) -> bool:
    """Returns whether this is a retry. The checkpoint or the files from which the trial resumes may have
    been deleted since."""
    if run_id is None:
        return False
    try:
        stored = (await runs.get(RunId(run_id))).spec
    except NotFound:
        return False
    return (stored.parent, stored.resume, stored.initial_folder) == (
        study.id,
        spec.resume,
        spec.initial_folder,
    )


async def _check_resume(runs: RunStore, study: Run, resume: ResumeFrom) -> None:
    try:
        source = await runs.get(resume.run)
        checkpoints = (
            await runs.checkpoints(resume.run)
            if source.spec.parent in await study_lineage(runs, study.id)
            else ()
        )
    except NotFound:
        checkpoints = ()
    if not any(
        checkpoint.step == resume.step and checkpoint.manifest == resume.manifest
        for checkpoint in checkpoints
    ):
        raise Forbidden(
            f"a trial of {study.name} can resume only from a checkpoint of another trial of the study"
        )


async def _check_folder(runs: RunStore, study: Run, folder: Digest) -> None:
    for parent in await study_lineage(runs, study.id):
        if await runs.list(RunFilter(parent=parent, run_folder=folder, limit=1, brief=True)):
            return
    raise Forbidden(f"a trial of {study.name} can begin with the files of another trial of the study only")


async def _check_continued(runs: RunStore, study: Run, spec: RunSpec) -> None:
    lineage = await study_lineage(runs, study.id)
    with suppress(NotFound):
        source = await runs.get(spec.continued_runs[-1])
        if source.spec.parent in lineage and spec.continued_runs == source.continued_by_next():
            return
    raise Forbidden(f"a trial of {study.name} can continue only another run of a trial of the study")


async def list_trials(runs: RunStore, study: RunId, phases: frozenset[RunPhase] | None = None) -> list[Run]:
    """Returns all runs with this parent, newest first."""
    trials: list[Run] = []
    while True:
        page = await runs.list(
            RunFilter(
                parent=study,
                phases=phases,
                limit=_PAGE_SIZE,
                before=trials[-1].id if trials else None,
                brief=True,
            )
        )
        trials += page
        if len(page) < _PAGE_SIZE:
            return trials
