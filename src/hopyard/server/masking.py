"""What of a run is its user's alone: the values of its environment variables, of which others are told the
names, and what it was granted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopyard.config.schemas.run_rules import check_variables
from hopyard.domain.access import Scope
from hopyard.domain.run import Run, RunSpec
from hopyard.server.authentication import Caller
from hopyard.server.services import Services

MASKED_VALUE = "***"


def may_see_values(caller: Caller, run: Run) -> bool:
    """Whether it is the run's user, with a token that is good for more than reading, the run itself, or its
    study."""
    if caller.run is not None:
        return caller.run in (run.id, run.spec.parent)
    return caller.user == run.name.user and Scope.SUBMIT in caller.scopes


def visible_run(caller: Caller, run: Run) -> Run:
    """The run as this caller may see it."""
    return run if may_see_values(caller, run) else replace(run, spec=_mask_values(run.spec))


def _mask_values(spec: RunSpec) -> RunSpec:
    env = dict.fromkeys(spec.env, MASKED_VALUE)
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
    """spec: of a run whose fork is another user's. dropped: names of variables and secrets that are not taken
    over."""

    spec: RunSpec
    dropped: tuple[str, ...] = ()


def inherit_spec(spec: RunSpec, secrets: Collection[str]) -> InheritedSpec:
    """What another user's fork takes over. Values belong to the user who gave them; a secret is the forking
    user's own of that name, where there is one among `secrets`. What the run was granted (its priority, and
    never to be preempted) is not handed on, nor its label, by which its user finds it."""
    trial = _trial_spec(spec)
    names = [
        *spec.env,
        *trial.get("env", ()),
        *(name for name in (*spec.secrets, *trial.get("secrets", ())) if name not in secrets),
    ]
    kept = tuple(name for name in spec.secrets if name in secrets)
    plain = replace(spec, label="", env={}, secrets=kept, priority=None, preemptible=True)
    if trial:
        own = [name for name in trial.get("secrets", ()) if name in secrets]
        plain = replace(
            plain,
            study={
                **(spec.study or {}),
                "trial": {**trial, "env": {}, "secrets": own, "priority": None, "preemptible": True},
            },
        )
    return InheritedSpec(plain, tuple(dict.fromkeys(names)))


def with_added_env(spec: RunSpec, env: Mapping[str, str], secrets: Collection[str]) -> RunSpec:
    """With these variables and secrets added, to the trials of a study, too. Raises SpecError for a variable
    that Hopyard sets itself."""
    check_variables(env)
    added = replace(spec, env={**spec.env, **env}, secrets=tuple(dict.fromkeys([*spec.secrets, *secrets])))
    trial = _trial_spec(spec)
    if not trial or not (env or secrets):
        return added
    more = {
        "env": {**trial.get("env", {}), **env},
        "secrets": list(dict.fromkeys([*trial.get("secrets", ()), *secrets])),
    }
    return replace(added, study={**(spec.study or {}), "trial": {**trial, **more}})


def _trial_spec(spec: RunSpec) -> Mapping[str, Any]:
    """What each trial of a study runs; empty where it is none, or its trials share workers."""
    return (spec.study or {}).get("trial") or {}


async def inherit_run(services: Services, source: Run, caller: Caller) -> tuple[Run, tuple[str, ...]]:
    """A run as a fork of it by this caller begins, and the names of variables and secrets that the fork does
    not take over."""
    user = caller.require_user()
    if user == source.name.user:
        return source, ()
    found = inherit_spec(source.spec, await services.access.secret_names(user))
    return replace(source, spec=found.spec), found.dropped
