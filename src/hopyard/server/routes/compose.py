"""The spec of a run from a `hop.yaml` and code, and the `hop.yaml` of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hopyard.config.recorded_request import recorded_request
from hopyard.config.run_file_text import format_run_file, run_file_values
from hopyard.config.schemas.fields import Hex, Id, Int64, RequestModel
from hopyard.config.schemas.runs import GitIn
from hopyard.domain.checkpoint import fork_candidates
from hopyard.domain.ids import Digest, RunId
from hopyard.domain.run import ResumeFrom as Resume
from hopyard.domain.run import Run
from hopyard.domain.script_tags import without_script_tags
from hopyard.errors import NotFound, SpecError
from hopyard.server.compose_run import compose_run
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.live_params import with_live_params
from hopyard.server.masking import inherit_run
from hopyard.server.queue_cache import without_removed_queue
from hopyard.server.services import Services
from hopyard.server.store_blobs import store_blobs

MAX_FILE_CHARACTERS = 1024 * 1024


class ComposeIn(RequestModel):
    """file: the text of a `hop.yaml`, or its values as JSON. A file with the key `space` is a search file
    and makes a study. code: the manifest of the uploaded code; null for a run without files. git: its git
    state. source: an earlier run; the run gets its environment, unless the file names requirements, an image
    or an interpreter."""

    file: Annotated[str, Meta(max_length=MAX_FILE_CHARACTERS)]
    code: Hex | None = None
    git: GitIn | None = None
    source: Id | None = None


class FileProblemOut(Struct, frozen=True):
    """path: the key of the file with the problem, as `roles.0.resources.gpus`; "" for none. hints: what to
    change."""

    path: str
    message: str
    hints: Sequence[str]


class TrialProposalOut(Struct, frozen=True):
    """budget: in the unit of the study's budget."""

    trial: str
    params: Mapping[str, Any]
    budget: int


class ComposedStudyOut(Struct, frozen=True, kw_only=True):
    """What the study would do. trials: at most; null if the searcher knows the number. concurrent: trials at
    a time. budget: the largest of a trial; null without one. first_trials: those that the searcher proposes
    first; empty for a searcher of the user's code, and of a package such as Optuna."""

    name: str
    metric: str
    goal: str
    searcher: str
    parallel: str
    trials: int | None
    concurrent: int
    budget: int | None
    budget_unit: str
    first_trials: Sequence[TrialProposalOut]


class ComposeOut(Struct, frozen=True, kw_only=True):
    """spec: of `POST /runs` and `POST /runs/preview`; null with a problem. values, file: the `hop.yaml` in
    its usual form. notices: sentences for the user. study: of a search file."""

    spec: Mapping[str, Any] | None = None
    problem: FileProblemOut | None = None
    values: Mapping[str, Any] | None = None
    file: str = ""
    notices: Sequence[str] = ()
    study: ComposedStudyOut | None = None


class RunFileQuery(RequestModel):
    """checkpoint: a step."""

    checkpoint: Int64 | None = None


class RunFileOut(Struct, frozen=True):
    """values, file: the `hop.yaml` that describes the run. code: its manifest. left_out: settings of the run
    that the file does not have, such as variables of another user."""

    file: str
    values: Mapping[str, Any]
    code: Digest | None
    left_out: Sequence[str]


def compose_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def inherited(request: ApiRequest[Any, Any], run: RunId) -> tuple[Run, tuple[str, ...]]:
        source, dropped = await inherit_run(services, await services.runs.get(run), request.caller)
        if source.spec.study is not None:
            raise SpecError(
                f"{source.name} is a study, which no hop.yaml describes",
                hints=("fork it: `hop fork STUDY`, or choose one of its trials",),
            )
        spec, _ = without_removed_queue(await services.queue_cache.tree(), source.spec)
        spec = without_script_tags(spec, await services.runs.script_tags(run))
        return replace(source, spec=spec), dropped

    async def compose(request: ApiRequest[Empty, ComposeIn]) -> ComposeOut:
        """Make the spec of a run from a `hop.yaml` and uploaded code, as `hop run FILE.yaml` makes it.

        A search file makes the spec of a study, as `hop search FILE.yaml` makes it.

        The code is read, and never started: its scripts show how they take parameters, and its requirements
        become a blob. The environment is that of the requirements, of inline metadata, or of the server's
        interpreter. A problem of the file is part of the response. 409 `missing_blobs`: upload the code
        first.
        """
        body, user = request.body, request.caller.user
        base: Mapping[str, Any] | None = None
        if body.source is not None:
            source, _ = await inherited(request, RunId(body.source))
            base = msgspec.to_builtins(source.spec.environment)
        await services.storage.check_quota(user)
        code = None if body.code is None else Digest(body.code)
        result, blobs = await compose_run(services, body.file, code, base)
        problem = result.get("error")
        if problem is not None:
            return ComposeOut(problem=msgspec.convert(problem, FileProblemOut))
        if blobs:
            await store_blobs(services, user, blobs)
        git = None if body.git is None else msgspec.to_builtins(body.git)
        study = result.get("study")
        return ComposeOut(
            spec=_with_code(result["spec"], code, git),
            values=result["values"],
            file=result["file"],
            notices=result["notices"],
            study=None if study is None else msgspec.convert(study, ComposedStudyOut),
        )

    async def run_file(request: ApiRequest[RunFileQuery, Empty]) -> RunFileOut:
        """Return a run as a `hop.yaml`: its command, resources, data, parameters and settings.

        With `checkpoint`, the parameters are those that held when it was saved: a fork that starts from it
        continues with what users set while the run was live.

        A run of another user is returned without its variables and secrets, as for a fork. So is each run
        for a token with the scope `read` alone.
        """
        source, dropped = await inherited(request, RunId(request.path["id"]))
        if request.query.checkpoint is not None:
            saved = await _own_checkpoint(services, source, request.query.checkpoint)
            source = await with_live_params(services, source, saved)
        described = recorded_request(source.spec)
        return RunFileOut(format_run_file(described), run_file_values(described), source.spec.code, dropped)

    return [
        Endpoint(
            "POST",
            "/runs/compose",
            compose,
            body=ComposeIn,
            returns=ComposeOut,
            errors=(400, 404, 409, 507),
            is_heavy=True,
            unaudited_reason="it changes no run",
        ),
        Endpoint(
            "GET",
            "/runs/{id}/yaml",
            run_file,
            RunFileQuery,
            returns=RunFileOut,
            errors=(400, 404),
        ),
    ]


async def _own_checkpoint(services: Services, run: Run, step: int) -> Resume:
    """Returns the checkpoint of the step that a fork would begin with. Raises NotFound."""
    saved = fork_candidates(await services.runs.checkpoints(run.id, own=True), step)
    if not saved:
        raise NotFound(
            f"run {run.name} has no checkpoint of step {step}",
            hints=("list them with `hop checkpoint ls RUN`",),
        )
    return Resume(run.id, step, saved[-1].manifest)


def _with_code(spec: Mapping[str, Any], code: Digest | None, git: Any) -> Mapping[str, Any]:
    """Returns the spec of a run, or of a study and its trials, with their code."""
    study = spec.get("study")
    if study and study.get("trial"):
        study = {**study, "trial": {**study["trial"], "code": code, "git": git}}
        return {**spec, "code": code, "git": git, "study": study}
    return {**spec, "code": code, "git": git}
