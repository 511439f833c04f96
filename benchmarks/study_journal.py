"""The workers' time according to a study's journal: units, and the pauses between them with their causes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Units:
    """hops, evaluations: records of that kind. params: of each trial."""

    hops: Sequence[Record]
    evaluations: Sequence[Record]
    params: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Units:
        """Raises RuntimeError if there is no unit, or more than one training and one evaluation each."""
        hops = [one for one in records if one["kind"] == "hop"]
        evaluations = [one for one in records if one["kind"] == "evaluated"]
        if not hops or not evaluations or any(len(hop["workers"]) > 1 for hop in hops):
            raise RuntimeError("the study's journal is not that of an undisturbed one")
        asked = [
            one["answer"] for one in records if one["kind"] == "asked" and isinstance(one["answer"], dict)
        ]
        return cls(hops, evaluations, {str(one["trial"]): one["params"] for one in asked})

    @property
    def began_at(self) -> float:
        return min(float(one["began_at"]) for one in (*self.hops, *self.evaluations))

    @property
    def span_s(self) -> float:
        return max(float(one["ended_at"]) for one in (*self.hops, *self.evaluations)) - self.began_at

    def most(self, metric: str) -> float:
        return max(float(one["metrics"][metric]) for one in self.evaluations)

    def last(self, metric: str, config: Mapping[str, Any]) -> float:
        """Of the trial of this configuration after its last epoch, over all rows."""
        trial = next(trial for trial, params in self.params.items() if dict(params) == dict(config))
        own = [one for one in self.evaluations if str(one["trial"]) == trial]
        epoch = max(int(one["epoch"]) for one in own)
        final = [one for one in own if int(one["epoch"]) == epoch]
        return sum(float(one["metrics"][metric]) * int(one["rows"]) for one in final) / sum(
            int(one["rows"]) for one in final
        )

    def seconds(self) -> dict[str, float]:
        """Of all units of a kind together."""
        return {"train_s": sum(map(_length, self.hops)), "evaluate_s": sum(map(_length, self.evaluations))}

    def shares(self) -> dict[str, float]:
        """Returns the shares of the workers' time (0 to 1), and two further values.

        train, evaluate: in units. edges: before a worker's first unit and after its last one. keep: loading
        and storing states. wait: all other pauses. gap_ms: the median pause between units. state_bytes: the
        encoded size of a state.
        """
        rows = self._by_worker()
        whole = self.span_s * len(rows)
        ends = self.began_at, self.began_at + self.span_s
        edges = sum(row[0][0] - ends[0] + ends[1] - row[-1][1] for row in rows)
        gaps = [after[0] - before[1] for row in rows for before, after in itertools.pairwise(row)]
        keep = sum(float(hop["save_s"]) + float(hop["fetch_s"]) for hop in self.hops)
        seconds = self.seconds()
        return {
            "train_share": seconds["train_s"] / whole,
            "evaluate_share": seconds["evaluate_s"] / whole,
            "keep_share": keep / whole,
            "edges_share": edges / whole,
            "wait_share": (sum(gaps) - keep) / whole,
            "gap_ms": 1000 * statistics.median(gaps) if gaps else 0.0,
            "state_bytes": statistics.median(float(hop["bytes"]) for hop in self.hops),
        }

    def _by_worker(self) -> list[list[tuple[float, float]]]:
        rows: dict[str, list[tuple[float, float]]] = {}
        for one in (*self.hops, *self.evaluations):
            worker = str(one["workers"][0] if one["kind"] == "hop" else one["worker"])
            rows.setdefault(worker, []).append((float(one["began_at"]), float(one["ended_at"])))
        return [sorted(row) for row in rows.values()]


def _length(one: Record) -> float:
    return float(one["ended_at"]) - float(one["began_at"])
