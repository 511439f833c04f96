"""Builds the launch of each replica from a placement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from hopyard.domain.command import params_after
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import AttemptId, split_attempt
from hopyard.domain.launch import Launch, ReplicaLaunch, RestorePoint
from hopyard.domain.launcher import EVALUATOR_ROLE, Launcher, LauncherPeer
from hopyard.domain.param_format import ParamValue, without_added_options
from hopyard.domain.preflight import Preflight, PreflightLaunch, has_all_reduce
from hopyard.domain.run import Run, RunSpec
from hopyard.domain.run_port import VISDOM_PORT
from hopyard.domain.study import Parallel
from hopyard.errors import NotFound, SpecError
from hopyard.interfaces.command_store import CommandStore
from hopyard.interfaces.run_store import RunStore

_MAX_OWN_CHECKPOINTS = 100  # of a launch


class LaunchBuilder:
    """Builds launches.

    server_url: where replicas reach the server. sign_token: creates the token of an attempt. gang_secret:
    returns the secret by which replicas of a gang authenticate each other, always the same for an attempt.
    preflight_secret: likewise, that of their checks, or with a rank that of the reports of this replica.
    commands: those that changed parameters of an earlier attempt.
    user_secrets: returns the values of a user's secrets among the names.
    has_visdom: whether this user has a live Visdom server.
    """

    def __init__(
        self,
        runs: RunStore,
        *,
        server_url: str,
        sign_token: Callable[[AttemptId], str],
        gang_secret: Callable[[AttemptId], str] = lambda _: "",
        preflight_secret: Callable[[AttemptId, int | None], str] = lambda _attempt, _rank: "",
        user_secrets: Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]] | None = None,
        commands: CommandStore | None = None,
        has_visdom: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._commands, self._preflight_secret, self._has_visdom = commands, preflight_secret, has_visdom
        self._runs, self._url, self._sign_token, self._gang_secret, self._user_secrets = (
            runs,
            server_url,
            sign_token,
            gang_secret,
            user_secrets,
        )

    async def build(self, run: Run, attempt: AttemptId, placement: Placement) -> Launch:
        """Returns the launch of this attempt: one ReplicaLaunch per rank, all with the same token, data and
        restore point. An elastic gang has as many replicas as were placed. Raises SpecError, NotFound."""
        if not all(role.command for role in run.spec.roles):
            raise SpecError(
                "the spec of the run cannot be read: it is damaged, or of another version",
                hints=("remove the run with `hop rm`",),
            )
        restore, values = await self._find_restore(run), await self._secret_values(run)
        spec, token = run.spec, self._sign_token(attempt)
        params = await self._current_params(run, attempt)
        own_checkpoints = await self._own_checkpoints(run)
        param_format = without_added_options(spec.param_format, params.keys() - spec.params.keys())
        has_secret = spec.study is not None or any(role.launcher is Launcher.MPI for role in spec.roles)
        secret = self._gang_secret(attempt) if has_secret else ""
        peers = _launcher_peers(spec, placement.gang)
        independent = _independent_ranks(spec, placement.gang)
        preflight = self._preflight(spec, placement.gang, attempt, independent)
        has_checks = spec.preflight is not Preflight.OFF
        is_visdom = VISDOM_PORT[0] in spec.ports
        visdom = self._has_visdom is not None and not is_visdom and await self._has_visdom(run.name.user)
        replicas: list[ReplicaLaunch] = []
        for role, placed in zip(spec.roles, placement.gang.roles, strict=True):
            for role_rank in range(placed.replicas):
                replicas.append(
                    ReplicaLaunch(
                        attempt=attempt,
                        run=run.id,
                        run_name=str(run.name),
                        rank=len(replicas),
                        role=role.name,
                        role_rank=role_rank,
                        world_size=placement.gang.size,
                        command=role.command,
                        resources=role.resources,
                        server_url=self._url,
                        token=token,
                        code=spec.code,
                        datasets=() if is_trials_study(spec) else spec.datasets,
                        params=params,
                        param_format=param_format,
                        tags=spec.tags,
                        env=spec.env,
                        environment=spec.environment,
                        time_limit_s=spec.time_limit_s,
                        max_output_bytes=spec.max_output_bytes,
                        max_metrics_bytes=spec.max_metrics_bytes,
                        outputs=spec.outputs,
                        metric_lines=spec.metric_lines,
                        ports=spec.ports,
                        evaluation=spec.evaluation,
                        resume_arguments=spec.resume_arguments,
                        own_checkpoints=own_checkpoints,
                        restore=restore,
                        foreign=_is_foreign(spec, restore),
                        essential=role.essential,
                        restart=role.restart,
                        study=spec.study,
                        secrets=values,
                        private_folders=any(each.private_folders for each in spec.roles),
                        checkpoint_files=spec.checkpoint_files,
                        run_folder=run.run_folder,
                        continued_runs=spec.continued_runs,
                        elastic=spec.is_elastic,
                        secret=secret,
                        service=role.service,
                        image=role.image,
                        network=spec.network,
                        launcher=role.launcher,
                        independent_ranks=independent,
                        launcher_peers=peers.get(role.launcher, ()),
                        preflight=replace(
                            preflight,
                            key=self._preflight_secret(attempt, len(replicas)) if has_checks else "",
                        ),
                        visdom=visdom,
                    )
                )
        return Launch(attempt, placement, tuple(replicas))

    def _preflight(
        self, spec: RunSpec, gang: Gang, attempt: AttemptId, independent: Collection[int]
    ) -> PreflightLaunch:
        """Returns the checks of the replicas. Those for which the training does not wait are not checked with
        the others. One role with an all-reduce gives it to all: the ring needs each replica."""
        if spec.preflight in (Preflight.OFF, Preflight.NODE):
            return PreflightLaunch(spec.preflight)
        ranks = tuple(rank for rank in range(gang.size) if rank not in independent)
        if len(ranks) < 2:
            return PreflightLaunch(spec.preflight)
        reduces = any(has_all_reduce(spec.preflight, role.launcher) for role in spec.roles)
        checks = Preflight.FULL if reduces else spec.preflight
        return PreflightLaunch(checks, self._preflight_secret(attempt, None), ranks=ranks)

    async def _current_params(self, run: Run, attempt: AttemptId) -> Mapping[str, ParamValue]:
        """Returns the parameters with the changes that commands made in earlier attempts."""
        if self._commands is None or split_attempt(attempt)[1] == 1:
            return run.spec.params
        return params_after(run.spec.params, await self._commands.commands(run.id))

    async def _own_checkpoints(self, run: Run) -> tuple[str, ...]:
        """Returns where the script has saved its checkpoints, the newest first, for the arguments of a
        resumed attempt. A run without any has those of the run that it continues."""
        if not run.spec.resume_arguments:
            return ()
        for source in (run.id, *run.spec.continued_runs[-1:]):
            with suppress(NotFound):  # the continued run was removed
                saved = [saved for saved in await self._runs.checkpoints(source, own=True) if saved.path]
                if saved:
                    newest_first = dict.fromkeys(checkpoint.path for checkpoint in reversed(saved))
                    return tuple(newest_first)[:_MAX_OWN_CHECKPOINTS]
        return ()

    async def _secret_values(self, run: Run) -> Mapping[str, str]:
        """Raises NotFound when a secret that the run names was removed."""
        names = run.spec.secrets
        if not names:
            return {}
        values = {} if self._user_secrets is None else await self._user_secrets(run.name.user, names)
        missing = [name for name in names if name not in values]
        if missing:
            raise NotFound(
                f"{run.name.user} has no secret `{missing[0]}` any more",
                hints=(f"set it with `hop secret set {missing[0]}`, and submit the run again",),
            )
        return values

    async def _find_restore(self, run: Run) -> RestorePoint | None:
        """Returns the checkpoint that the store chose when it created the attempt: the run's own, else the
        forked run's."""
        step = run.attempt.resumed_from_step if run.attempt else None
        if step is None:
            return None
        for checkpoint in reversed(await self._runs.checkpoints(run.id)):
            if checkpoint.step == step:
                return RestorePoint(step, checkpoint.manifest)
        resume = run.spec.resume
        return RestorePoint(step, resume.manifest) if resume is not None and resume.step == step else None


def _launcher_peers(spec: RunSpec, gang: Gang) -> Mapping[Launcher, tuple[LauncherPeer, ...]]:
    """Returns the replicas of each launcher, in the order of ranks."""
    peers: dict[Launcher, tuple[LauncherPeer, ...]] = {}
    for role, placed in zip(spec.roles, gang.roles, strict=True):
        if role.launcher is not Launcher.NONE:
            own = (LauncherPeer(role.name, index, role.process_count) for index in range(placed.replicas))
            peers[role.launcher] = (*peers.get(role.launcher, ()), *own)
    return peers


def _independent_ranks(spec: RunSpec, gang: Gang) -> tuple[int, ...]:
    """Returns the ranks of `ReplicaLaunch.independent_ranks`: none if no other replica is left."""
    evaluators = {
        role.name
        for role in spec.roles
        if role.launcher is Launcher.TENSORFLOW and role.name == EVALUATOR_ROLE
    }
    evaluating = {rank for rank, role in gang.replica_roles() if role.name in evaluators}
    found = gang.optional_ranks() | evaluating
    return tuple(sorted(found)) if len(found) < gang.size else ()


def _is_foreign(spec: RunSpec, restore: RestorePoint | None) -> bool:
    """Returns whether another user wrote the restore point of the attempt. Checkpoints that the run saved are
    its own, except the states of a study, which pass on the states that it began with."""
    resume = spec.resume
    if resume is None or not resume.foreign or restore is None:
        return False
    return spec.study is not None or (restore.step, restore.manifest) == (resume.step, resume.manifest)


def is_trials_study(spec: RunSpec) -> bool:
    """Returns whether the run is a study whose trials are runs of their own. The study names their data and
    appears on its leaderboards, but only the trials read the data."""
    return spec.study is not None and spec.study.get("parallel") == Parallel.TRIALS
