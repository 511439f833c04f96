"""Resolves a user's reference to a run: a name, number, label, ID, part of an ID, or `last`."""

from __future__ import annotations

import asyncio

from hopyard.domain.ids import LAST_RUN_REF, RunId, RunName, is_name, is_run_id
from hopyard.domain.run import Run, RunPhase
from hopyard.domain.suggest import close_names
from hopyard.errors import NotFound, SpecError
from hopyard.interfaces.run_store import RunFilter, RunStore

_NAMES_HINT = "name a run by USER/PROJECT/NUMBER, PROJECT/NUMBER, NUMBER, label, id or `last`: alice/mnist/12"
_MIN_ID_PREFIX = 6
_LIVE_PHASES = frozenset(phase for phase in RunPhase if not phase.is_final)
_MAX_SUGGESTIONS = 10  # listed runs that match a bare number
_MAX_COMPARED_RUNS = 200  # newest runs whose names are compared for hints


async def resolve_run(runs: RunStore, ref: str, *, user: str, project: str | None = None) -> Run:
    """Returns the run to which `ref` refers for `user`. project: the user's current project, where a bare
    number is looked up first.

    Raises NotFound with similar names as hints; SpecError when part of an ID or a bare number matches several
    runs.
    """
    ref = ref.strip()
    if not ref:
        raise SpecError("no run is given", hints=(_NAMES_HINT,))
    run = (
        await _by_last(runs, ref, user)
        or await _by_name(runs, ref, user, project)
        or await _by_id(runs, ref)
        or await _by_own_label(runs, ref, user)
        or await _by_id_prefix(runs, ref)
        or await _by_label_of_others(runs, ref)
    )
    if run is None and ref == LAST_RUN_REF:  # the default of commands without a name
        other_runs = await runs.list(RunFilter(limit=1))
        raise NotFound(
            "you have no runs yet" if other_runs else "there are no runs yet",
            hints=(
                "start one with `hop run`",
                *(("list the runs of others with `hop ps --all`",) if other_runs else ()),
            ),
        )
    if run is None:
        raise NotFound(f"there is no run `{ref}`", hints=await _close_names(runs, ref))
    return run


async def _by_last(runs: RunStore, ref: str, user: str) -> Run | None:
    if ref != LAST_RUN_REF:
        return None
    return next(iter(await runs.list(RunFilter(user=user, trials=False, limit=1))), None)


async def _by_name(runs: RunStore, ref: str, user: str, project: str | None) -> Run | None:
    *prefix, number = ref.split("/")
    if (
        not number.isdecimal()
        or not number.isascii()
        or len(number) > 9
        or len(prefix) > 2
        or not all(map(is_name, prefix))
    ):
        return None
    if not prefix:
        return await _by_number(runs, int(number), user, project)
    name = RunName(prefix[0] if len(prefix) == 2 else user, prefix[-1], int(number))
    return await runs.find_by_name(name)


async def _by_number(runs: RunStore, number: int, user: str, project: str | None) -> Run | None:
    """Returns the run with this number in `project`, else the only one of the user. A choice among several
    could delete the wrong run."""
    if project is not None and (named := await runs.find_by_name(RunName(user, project, number))) is not None:
        return named
    matches = await runs.list(RunFilter(user=user, number=number, limit=_MAX_SUGGESTIONS + 1, brief=True))
    if len(matches) > 1:
        names = ", ".join(f"{run.name.project}/{number}" for run in matches[:_MAX_SUGGESTIONS])
        more = " and more" if len(matches) > _MAX_SUGGESTIONS else ""
        raise SpecError(
            f"`{number}` is a run in several projects: {names}{more}",
            hints=("add the project: PROJECT/NUMBER",),
        )
    return await runs.get(matches[0].id) if matches else None


async def _by_own_label(runs: RunStore, ref: str, user: str) -> Run | None:
    """Returns the user's newest run with this label; live runs come before ended ones."""
    live = await runs.list(RunFilter(user=user, label=ref, phases=_LIVE_PHASES, limit=1))
    return next(iter(live or await runs.list(RunFilter(user=user, label=ref, limit=1))), None)


async def _by_label_of_others(runs: RunStore, ref: str) -> Run | None:
    """Returns the newest run with this label. A label must not hide a name, so a reference in the form of a
    name is not looked up among labels."""
    if "/" in ref or ref.isdecimal() or ref == LAST_RUN_REF:
        return None
    return next(iter(await runs.list(RunFilter(label=ref, limit=1))), None)


async def _by_id(runs: RunStore, ref: str) -> Run | None:
    if len(ref) < _MIN_ID_PREFIX or not is_run_id(ref):
        return None
    try:
        return await runs.get(RunId(ref))
    except NotFound:
        return None


async def _by_id_prefix(runs: RunStore, ref: str) -> Run | None:
    if len(ref) < _MIN_ID_PREFIX or not is_run_id(ref):
        return None
    matches = await runs.list(RunFilter(id_prefix=ref, limit=2))
    if len(matches) > 1:
        raise SpecError(
            f"`{ref}` begins the id of several runs",
            hints=[f"for example {run.id} ({run.name})" for run in matches],
        )
    return matches[0] if matches else None


async def _close_names(runs: RunStore, ref: str) -> list[str]:
    recent = await runs.list(RunFilter(limit=_MAX_COMPARED_RUNS, brief=True))
    words = {
        word: run
        for run in reversed(recent)
        for word in (str(run.name), f"{run.name.project}/{run.name.number}", run.spec.label)
        if word
    }
    close_words = await asyncio.to_thread(close_names, ref, words)
    names = list(dict.fromkeys(str(words[word].name) for word in close_words))
    return [f"did you mean {' or '.join(names)}?"] if names else ["list the runs with `hop ps --all`"]
