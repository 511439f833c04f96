"""The latest values of metrics, and their extremes where they are known."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select, update

from hopyard.domain.ids import RunId
from hopyard.domain.metric_extremes import Extremes, StepValue
from hopyard.domain.run_values import merge_values
from hopyard.stores.sql.codec import decode_map, encode_map
from hopyard.stores.sql.tables import run_contents


def write_metrics(
    conn: Connection,
    run: RunId,
    latest: Mapping[str, StepValue],
    extremes: Mapping[str, Extremes],
    *,
    replace_all: bool,
) -> None:
    """Merges the values by name, as in `RunStore.record_metrics`."""
    columns = run_contents.c.latest, run_contents.c.extremes
    old_latest, old_extremes = conn.execute(select(*columns).where(run_contents.c.run == run)).one()
    merged = merge_values({} if replace_all else decode_map(old_latest), latest)
    known = {} if replace_all else decode_map(old_extremes)
    known = {name: value for name, value in known.items() if name not in latest}
    new = encode_map(merged), encode_map(merge_values(known, extremes))
    if new != (old_latest, old_extremes):
        values = dict(zip(("latest", "extremes"), new, strict=True))
        conn.execute(update(run_contents).where(run_contents.c.run == run).values(values))


def write_extremes(conn: Connection, run: RunId, metric: str, extremes: Extremes, latest: StepValue) -> None:
    """Writes what was read from a curve. latest: its newest point."""
    columns = run_contents.c.latest, run_contents.c.extremes
    row = conn.execute(select(*columns).where(run_contents.c.run == run)).one_or_none()
    # as texts, since NaN differs from itself
    if row is not None and repr(decode_map(row.latest).get(metric)) == repr(list(latest)):
        known = encode_map(merge_values(decode_map(row.extremes), {metric: extremes}))
        conn.execute(update(run_contents).where(run_contents.c.run == run).values(extremes=known))


def decode_extremes(text: str) -> dict[str, Extremes]:
    return {
        name: ((low_step, low), (high_step, high))
        for name, ((low_step, low), (high_step, high)) in decode_map(text).items()
    }
