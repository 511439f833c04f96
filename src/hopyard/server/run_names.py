"""Names of runs in sentences: the scheduler knows runs by their ids, people by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hopyard.domain.ids import RUN_ID_PATTERN, RunId
from hopyard.domain.run import Run
from hopyard.interfaces.run_store import RunFilter, RunStore

_RUN_REFERENCE = re.compile(rf"\brun ({RUN_ID_PATTERN})\b")


async def run_names(runs: RunStore, ids: Iterable[str]) -> Mapping[str, str]:
    """The names of those of the runs that there are, by id."""
    wanted = frozenset(RunId(one) for one in ids)
    found = await runs.list(RunFilter(ids=wanted, limit=len(wanted), brief=True)) if wanted else []
    return {run.id: str(run.name) for run in found}


async def replace_run_ids(runs: RunStore, texts: Sequence[str]) -> list[str]:
    """The texts, `run ID` replaced by `run NAME` wherever there is such a run."""
    names = await run_names(runs, (found[1] for text in texts for found in _RUN_REFERENCE.finditer(text)))
    return (
        [_RUN_REFERENCE.sub(lambda found: f"run {names.get(found[1], found[1])}", text) for text in texts]
        if names
        else list(texts)
    )


async def with_readable_names(runs: RunStore, found_runs: Sequence[Run]) -> list[Run]:
    """The same, with names in what is told of why each waits or makes room."""
    texts = await replace_run_ids(
        runs, [text for run in found_runs for text in (run.hold_detail, _preempted_for_text(run))]
    )
    told = []
    for run, held, makes_room in zip(found_runs, texts[::2], texts[1::2], strict=True):
        attempt = run.attempt if run.attempt is None else replace(run.attempt, preempt_reason=makes_room)
        told.append(replace(run, hold_detail=held, attempt=attempt))
    return told


async def with_readable_name(runs: RunStore, run: Run) -> Run:
    """As `readable`, of one run."""
    (told,) = await with_readable_names(runs, [run])
    return told


def _preempted_for_text(run: Run) -> str:
    return "" if run.attempt is None else run.attempt.preempt_reason
