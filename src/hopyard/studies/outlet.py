"""What people see of a study while it runs: lines on stdout, curves, the summary, mirrors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.study import TALLIES, StudySpec
from hopyard.domain.trial import Proposal
from hopyard.studies.curves import Curves
from hopyard.studies.standing import Phase, Standing

_SUMMARY_EVERY_S = 1.0


class Mirror(Protocol):
    """Of `studies.mirrors`, what is needed here."""

    def began(self, trial: TrialId, params: Mapping[str, ParamValue]) -> None: ...
    def reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None: ...
    def ended(self, trial: TrialId, *, failed: bool) -> None: ...


class Outlet:
    """An `Audience` of the driver. summarise: `hop.summary`.
    progress: told how many trials have ended, of how many. look: called after each round of news."""

    def __init__(
        self,
        spec: StudySpec,
        curves: Curves,
        mirror: Mirror,
        *,
        summarise: Callable[[Mapping[str, float]], None],
        progress: Callable[[int, int | None], None],
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._spec, self._curves, self._mirror = spec, curves, mirror
        self._summarise, self._progress, self._look = summarise, progress, look
        self._said: dict[str, float] = {}
        self._ended = -1
        self._said_at = 0.0

    def began(self, proposal: Proposal) -> None:
        self._mirror.began(proposal.trial, proposal.params)

    def reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        self._curves.reported(trial, step, metrics)
        self._mirror.reported(trial, step, metrics)

    def ended(self, trial: TrialId, phase: Phase, why: str) -> None:
        self._mirror.ended(trial, failed=phase is Phase.FAILED)
        if phase is Phase.FAILED:
            _tell(f"trial {trial} failed: {why}")

    def stands(self, standing: Standing) -> None:
        """At most once a second, unless it is the end."""
        self._look()
        now = time.monotonic()
        if now - self._said_at >= _SUMMARY_EVERY_S:
            self._said_at = now
            self.summarise(standing)

    def summarise(self, standing: Standing, *, over: bool = False) -> None:
        """over: trials that are paused will never go on."""
        ended = (
            len(standing.trials) - len(standing.training()) - (0 if over else standing.count(Phase.PAUSED))
        )
        values: dict[str, float] = dict(
            zip(TALLIES, (len(standing.trials), standing.count(Phase.FAILED)), strict=True)
        )
        if standing.best is not None:
            values[self._spec.metric] = standing.best.value
        if values != self._said:
            self._said = values
            self._summarise(values)
        if ended != self._ended:
            self._ended = ended
            self._progress(ended, self._spec.trials)

    def close(self, standing: Standing, *, over: bool) -> None:
        """The study is over, or goes on in another attempt."""
        self.summarise(standing, over=over)
        best = standing.best
        if best is not None:
            params = ", ".join(f"{name}={value}" for name, value in best.params.items())
            _tell(
                f"best so far: trial {best.trial}, {self._spec.metric} {best.value:g} after epoch "
                f"{best.step}, with {params or 'no parameters'}"
            )


def _tell(line: str) -> None:
    print(line, flush=True)
