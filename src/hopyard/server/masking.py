"""Hides private values of a run from other users: the values of its environment variables, the addresses of
its webhooks, and granted privileges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopyard.config.schemas.run_rules import check_variables
from hopyard.domain.access import Scope
from hopyard.domain.notification import shown_target
from hopyard.domain.run import Run, RunSpec
from hopyard.domain.run_environment import MASKED_VALUE
from hopyard.server.authentication import Caller
from hopyard.server.services import Services


def may_see_values(caller: Caller, run: Run) -> bool:
    """Returns whether the caller is the run's user with a token for more than reading, the run itself, or its
    study."""
    if caller.run is not None:
        return caller.run in (run.id, run.spec.parent)
    return caller.user == run.name.user and Scope.SUBMIT in caller.scopes


def visible_run(caller: Caller, run: Run) -> Run:
    """Returns the run as this caller may see it."""
    return run if may_see_values(caller, run) else replace(run, spec=_mask_values(run.spec))


def _mask_values(spec: RunSpec) -> RunSpec:
    env = dict.fromkeys(spec.env, MASKED_VALUE)
    if spec.on_end:
        spec = replace(spec, on_end=tuple(replace(each, to=shown_target(each.to)) for each in spec.on_end))
    trial = _trial_spec(spec)
    if not trial.get("env"):
        return replace(spec, env=env) if env else spec
    return replace(
        spec,
        env=env,
        study={**(spec.study or {}), "trial": {**trial, "env": dict.fromkeys(trial["env"], MASKED_VALUE)}},
    )


@dataclass(frozen=True, slots=True)
class InheritedSpec:
    """The spec of a fork of another user's run. dropped: names of variables and secrets that the fork does
    not inherit."""

    spec: RunSpec
    dropped: tuple[str, ...] = ()


def inherit_spec(spec: RunSpec, secrets: Collection[str]) -> InheritedSpec:
    """Returns the spec that a fork by another user inherits.

    Values of variables belong to the user who set them. A secret is replaced by the forking user's secret of
    that name, if it is in `secrets`. Granted privileges (its priority, and no preemption) are not inherited.
    Neither are the label, by which the original user finds the run, and targets of notifications.
    """
    trial = _trial_spec(spec)
    names = [
        *spec.env,
        *trial.get("env", ()),
        *(name for name in (*spec.secrets, *trial.get("secrets", ())) if name not in secrets),
    ]
    inherited_secrets = tuple(name for name in spec.secrets if name in secrets)
    inherited = replace(
        spec, label="", env={}, secrets=inherited_secrets, priority=None, preemptible=True, on_end=()
    )
    if trial:
        trial_secrets = [name for name in trial.get("secrets", ()) if name in secrets]
        inherited = replace(
            inherited,
            study={
                **(spec.study or {}),
                "trial": {
                    **trial,
                    "env": {},
                    "secrets": trial_secrets,
                    "priority": None,
                    "preemptible": True,
                },
            },
        )
    return InheritedSpec(inherited, tuple(dict.fromkeys(names)))


def with_added_env(spec: RunSpec, env: Mapping[str, str], secrets: Collection[str]) -> RunSpec:
    """Returns the spec with these variables and secrets added, also to the trials of a study."""
    check_variables(env)
    extended = replace(spec, env={**spec.env, **env}, secrets=tuple(dict.fromkeys([*spec.secrets, *secrets])))
    trial = _trial_spec(spec)
    if not trial or not (env or secrets):
        return extended
    trial_changes = {
        "env": {**trial.get("env", {}), **env},
        "secrets": list(dict.fromkeys([*trial.get("secrets", ()), *secrets])),
    }
    return replace(extended, study={**(spec.study or {}), "trial": {**trial, **trial_changes}})


def _trial_spec(spec: RunSpec) -> Mapping[str, Any]:
    """Returns the trial spec of a study; {} if the run is no study, or its trials share workers."""
    return (spec.study or {}).get("trial") or {}


async def inherit_run(services: Services, source: Run, caller: Caller) -> tuple[Run, tuple[str, ...]]:
    """Returns the run from which a fork by this caller starts, and the names of variables and secrets that
    the fork does not inherit. A token that may only read inherits as another user does: it sees no values."""
    user = caller.require_user()
    if may_see_values(caller, source):
        return source, ()
    inherited = inherit_spec(source.spec, await services.access.secret_names(user))
    return replace(source, spec=inherited.spec), inherited.dropped
