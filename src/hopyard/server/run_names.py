"""Replaces run IDs by names in sentences, since the scheduler knows only IDs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hopyard.domain.ids import RUN_ID_PATTERN, RunId
from hopyard.domain.run import Run
from hopyard.interfaces.run_store import RunFilter, RunStore

_IDS_PER_LISTING = 500
_RUN_REFERENCE = re.compile(rf"\brun ({RUN_ID_PATTERN})\b")


async def run_names(runs: RunStore, ids: Iterable[str]) -> Mapping[str, str]:
    """Returns the names of the runs that exist, by ID."""
    run_ids = sorted({RunId(run_id) for run_id in ids})
    names: dict[str, str] = {}
    for start in range(0, len(run_ids), _IDS_PER_LISTING):
        some = frozenset(run_ids[start : start + _IDS_PER_LISTING])
        matches = await runs.list(RunFilter(ids=some, limit=len(some), brief=True))
        names |= {run.id: str(run.name) for run in matches}
    return names


async def replace_run_ids(runs: RunStore, texts: Sequence[str]) -> list[str]:
    """Returns the texts with `run ID` replaced by `run NAME` for each run that exists."""
    names = await run_names(runs, (match[1] for text in texts for match in _RUN_REFERENCE.finditer(text)))
    return (
        [_RUN_REFERENCE.sub(lambda match: f"run {names.get(match[1], match[1])}", text) for text in texts]
        if names
        else list(texts)
    )


async def with_readable_names(runs: RunStore, found_runs: Sequence[Run]) -> list[Run]:
    """Returns the runs with names instead of IDs in their hold details and preemption reasons."""
    texts = await replace_run_ids(
        runs, [text for run in found_runs for text in (run.hold_detail, _preempted_for_text(run))]
    )
    renamed = []
    for run, hold_detail, preempt_reason in zip(found_runs, texts[::2], texts[1::2], strict=True):
        attempt = run.attempt if run.attempt is None else replace(run.attempt, preempt_reason=preempt_reason)
        renamed.append(replace(run, hold_detail=hold_detail, attempt=attempt))
    return renamed


async def with_readable_name(runs: RunStore, run: Run) -> Run:
    """As `with_readable_names`, for one run."""
    (renamed,) = await with_readable_names(runs, [run])
    return renamed


def _preempted_for_text(run: Run) -> str:
    return "" if run.attempt is None else run.attempt.preempt_reason
