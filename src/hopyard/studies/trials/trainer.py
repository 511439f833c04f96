"""A trainer whose trials are runs of their own, through the queue: as many at a time as the study says.

Nothing here is remembered that the journal and the server do not know: a driver that begins again finds its
runs by their ids.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.run import RunPhase
from hopyard.errors import Conflict, HopyardError, NotFound, ServerUnavailable
from hopyard.studies.journal import CONTINUED
from hopyard.studies.server import StudyServer
from hopyard.studies.trainer import Ground, News, Reached, TrialFailed, Work
from hopyard.studies.trials.child import Child
from hopyard.studies.trials.launch import Launched, counts_epochs, plan_run, shift_of_copy, submission
from hopyard.studies.trials.sources import Sources

LOOK_EVERY_S = 0.15  # on average at most so often, though there is always news
_LOOK_S = 1.0  # a look waits so long for news
_TIMEOUT_S = 30.0
_SAVE_S = 60.0  # for a script that goes on beyond its budget to come to a safe point
_END_S = 30.0  # for runs that were asked to end, when the study is over
_TAIL_LINES = 30


class TrialRuns:
    """A `Trainer`. server: the study's line. run: the study's own."""

    def __init__(self, ground: Ground, server: StudyServer, run: RunId) -> None:
        self._ground, self._server, self._run = ground, server, run
        self._spec = ground.spec
        self._waiting: dict[TrialId, Work] = {}  # works whose run is not submitted yet
        self._children: dict[RunId, Child] = {}  # runs that are not over, or still speak
        self._newest: dict[TrialId, Launched] = {}  # the run that each trial was given last
        self._left: dict[TrialId, Launched] = {}  # the run in which each trial came to a budget last
        # by budget, the run in which each trial came to it
        self._reached_in: dict[TrialId, dict[int, Launched]] = {}
        self._cut: dict[TrialId, Launched] = {}  # runs that ended with the study that this one continues
        self._news: list[News] = []
        self._looked_at = 0.0
        self._told_overrun = False
        self._sources = Sources(server, ground.spec, ground.say)
        self._orphans_ended = False
        self._read(ground.past)

    def _read(self, past: Iterable[Mapping[str, Any]]) -> None:
        told: dict[TrialId, int] = {}
        for record in past:
            if record.get("kind") == "told":
                told[TrialId(record["report"]["trial"])] = int(record["report"]["step"])
            elif record.get("kind") == "submitted":
                self._sources.submitted(RunId(record["run"]), str(record["name"]))
            elif record.get("kind") == "run":
                launched = Launched.of_record(record)
                self._sources.launched(launched, told=told.get(launched.trial, 0))
                self._newest[launched.trial] = launched
                self._cut.pop(launched.trial, None)
            elif record.get("kind") == CONTINUED:
                self._cut |= {
                    trial: launched
                    for trial, launched in self._newest.items()
                    if self._left.get(trial) != launched
                }
                self._newest.clear()
            elif record.get("kind") == "reached" and record["trial"] in self._newest:
                self._note_left(record["trial"])

    # -- the Trainer
    # --------------------------------------------------------------------------------------------------

    def room(self) -> int:
        busy = sum(not child.over for child in self._children.values()) + len(self._waiting)
        return max(self._spec.at_once - busy, 0)

    def start(self, work: Work) -> None:
        known = self._newest.get(work.trial)
        if work.resumed and known is not None and known.budget == work.budget:
            self._submit(work, known, submission(self._run, self._spec, work, known.resume, known.last))
            return
        if work.resumed and work.trial in self._left and self._left[work.trial].budget == work.budget:
            # the last thing that the study which this one continues has seen
            self._news.append(Reached(work.trial, work.budget))
            return
        self._waiting[work.trial] = work
        if known is not None and known.run not in self._children and work.trial not in self._left:
            # it was asked to go on before anybody saw the end of its last run
            self._watch(known, told=known.budget)

    # checkpoints are kept with their runs
    def end(self, trial: TrialId, *, keep: bool) -> None:  # noqa: ARG002
        self._waiting.pop(trial, None)
        self._news = [news for news in self._news if news.trial != trial]
        for child in self._children.values():
            if child.trial == trial and not child.over and not child.ending:
                child.ending = True
                self._stop(child.run)

    def wait(self, timeout_s: float) -> list[News]:
        deadline = time.monotonic() + timeout_s
        if not self._orphans_ended:
            self._end_orphans()
        while True:
            self._submit_waiting()
            if not self._news and not self._ground.stopping():
                self._look(max(0.0, min(deadline - time.monotonic(), _LOOK_S)))
            if self._news or self._ground.stopping() or time.monotonic() >= deadline:
                news, self._news = self._news, []
                for one in news:
                    launched = self._newest.get(one.trial)
                    if (
                        launched is not None
                        and not isinstance(one, TrialFailed)
                        and (child := self._children.get(launched.run)) is not None
                        and child.over
                    ):
                        self._note_left(one.trial)
                return news

    def close(self, *, over: bool) -> None:
        """over: wait a while for what was asked to end, so that a study that is over leaves nothing behind
        it."""
        deadline = time.monotonic() + _END_S
        while over and time.monotonic() < deadline and not self._ground.stopping():
            if all(child.over for child in self._children.values()):
                return
            self._look(_LOOK_S)

    # -- submitting
    # -------------------------------------------------------------------------------------------------------

    def _submit_waiting(self) -> None:
        for trial, work in list(self._waiting.items()):
            source_of = work.trial if work.start_from is None else work.start_from
            if self._is_busy(trial) or self._is_busy(source_of, reached=True) or self._is_ending(trial):
                continue  # what it goes on from is still being written
            del self._waiting[trial]
            source, shift = self._source(work, source_of)
            launched, body = plan_run(self._run, self._spec, work, source, shift=shift)
            fields = {
                "run": launched.run,
                "budget": launched.budget,
                "last": launched.last,
                "shift": launched.shift,
                "resume": launched.resume,
            }
            self._ground.journal.write("run", trial=trial, **fields)
            self._sources.launched(launched, told=work.done)
            self._submit(work, launched, body)

    def _source(self, work: Work, source_of: TrialId) -> tuple[Mapping[str, Any] | None, int]:
        """The checkpoint that the work begins with, and the shift from the script's epochs to the trial's."""
        cut = self._cut.pop(work.trial, None)
        origin, epochs = (cut, work.done) if cut is not None else self._origin(work, source_of)
        found = None if origin is None else self._sources.find(origin, epochs, trial=work.trial)
        if found is None:
            return None, 0
        source, counted = found
        own = counted.trial == work.trial
        return source, counted.shift if own else shift_of_copy(
            counted, int(source["step"]), epochs, done=work.done
        )

    def _origin(self, work: Work, source_of: TrialId) -> tuple[Launched | None, int]:
        """The run with the state that the work resumes from, and after how many epochs of its trial. A trial
        that copies another one takes the state after its own number of epochs, though the other one is ahead
        by now: so no state is trained for more epochs than the study says."""
        reached = self._reached_in.get(source_of, {})
        if (
            source_of != work.trial
            and work.done
            and (ahead := [budget for budget in reached if budget >= work.done])
        ):
            return reached[min(ahead)], work.done
        left = self._left.get(source_of)
        return left, 0 if left is None else left.budget

    def _submit(self, work: Work, launched: Launched, body: Mapping[str, Any]) -> None:
        self._newest[work.trial] = launched
        taken = self._server.post("/runs", body)
        self._sources.submitted(launched.run, str(taken["name"]))
        # people say it by its name
        self._ground.journal.write("submitted", trial=work.trial, run=launched.run, name=taken["name"])
        self._watch(launched, told=work.done)

    def _watch(self, launched: Launched, *, told: int) -> None:
        whole = not counts_epochs(self._spec)
        self._children[launched.run] = Child(
            launched.run,
            launched.trial,
            launched.budget,
            self._spec.metric,
            launched.last,
            launched.shift,
            whole,
            told=told,
        )

    def _is_busy(self, trial: TrialId, *, reached: bool = False) -> bool:
        """Whether a run of the trial is still to end; reached: only one that has done its budget."""
        return any(
            c.trial == trial and not c.over and (not reached or c.told >= c.budget)
            for c in self._children.values()
        )

    def _is_ending(self, trial: TrialId) -> bool:
        """Whether its run of the study that this one continues has still to save and to leave."""
        cut = self._cut.get(trial)
        found = None if cut is None else self._server.find(f"/runs/{cut.run}")
        return found is not None and not RunPhase(found["phase"]).final

    def _note_left(self, trial: TrialId) -> None:
        launched = self._left[trial] = self._newest[trial]
        self._reached_in.setdefault(trial, {})[launched.budget] = launched

    # -- looking
    # --------------------------------------------------------------------------------------------------------

    def _look(self, wait_s: float) -> None:
        """Ask after all runs at once, and take what came."""
        live = {run: child for run, child in self._children.items() if not child.over}
        pause = min(wait_s, self._looked_at + LOOK_EVERY_S - time.monotonic())
        if pause > 0 or not live:
            time.sleep(pause if live else wait_s)
        if not live:
            return
        body = {
            "trials": {
                run: None if child.phase is None else child.phase.value for run, child in live.items()
            },
            "cursors": {
                f"{attempt}:{rank}:{stream}": at
                for child in live.values()
                for (attempt, rank, stream), at in child.cursors.items()
            },
            "wait_s": wait_s,
        }
        answer = self._server.exchange(f"/runs/{self._run}/trials", body, timeout_s=wait_s + _TIMEOUT_S)
        self._looked_at = time.monotonic()
        line, _, data = answer.partition(b"\n")
        self._take(live, json.loads(line), data)

    def _take(self, live: Mapping[RunId, Child], head: Mapping[str, Any], data: bytes) -> None:
        heads = {one["id"]: one for one in head["trials"]}
        for run, child in live.items():
            if run in heads:
                child.see(heads[run])
        at = 0
        for one in head["segments"]:
            run = RunId(str(one["attempt"]).rpartition(".")[0])
            part, at = data[at : at + one["size"]], at + one["size"]
            news = live[run].feed((one["attempt"], one["rank"], one["stream"]), one["offset"], part)
            self._news += [] if live[run].ending else news
        for run, child in live.items():
            if run not in heads:
                child.over = True
                self._news += (
                    []
                    if child.ending
                    else [TrialFailed(child.trial, f"its run {child.name or run} was deleted")]
                )
            elif child.phase is not None and child.phase.final and not head["more"]:
                self._news += self._ended(child)
            elif child.overrun and not child.asked and not child.ending:
                self._end_overrun(child)

    def _ended(self, child: Child) -> list[News]:
        news = child.end()
        if news and isinstance(news[-1], TrialFailed) and child.phase is RunPhase.FAILED:
            news[-1] = replace(news[-1], traceback=self._last_words(child.run))
        return news

    def _last_words(self, run: RunId) -> str:
        try:
            return self._server.read(f"/runs/{run}/log", stream="stderr", tail_lines=_TAIL_LINES).decode(
                errors="replace"
            )
        except ServerUnavailable:
            raise
        except HopyardError:
            return ""

    # -- ending
    # --------------------------------------------------------------------------------------------------------

    def _stop(self, run: RunId, **how: Any) -> None:
        try:
            self._server.post(f"/runs/{run}/stop", how)
        except (NotFound, Conflict):
            return  # deleted meanwhile

    def _end_overrun(self, child: Child) -> None:
        """It has done its budget and goes on: asked once to leave at its next safe point, so that what it did
        is kept."""
        child.asked = True
        if not self._told_overrun:
            self._told_overrun = True
            name = self._spec.budget_param
            self._ground.say(
                f"trials go on beyond their budget: the script takes no parameter `{name}` "
                f"(hop.params({name}=…)); they are stopped there"
            )
        self._stop(child.run, grace_s=_SAVE_S, at_safe_point=True)

    def _end_orphans(self) -> None:
        """Runs that an earlier driver started, or meant to stop, and that nobody wants now."""
        self._orphans_ended = True
        live = ",".join(phase.value for phase in RunPhase if not phase.final)
        for one in (
            self._server.find_all("/runs", "runs", cursor="before", parent=self._run, phase=live) or ()
        ):
            if one["id"] not in self._children and one["phase"] != RunPhase.STOPPING:
                self._stop(RunId(one["id"]))
