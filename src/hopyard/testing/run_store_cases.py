"""What every RunStore does."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind
from hopyard.domain.brief import MOST_VALUES, brief_spec
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import Digest, RunId, RunName, attempt_id
from hopyard.domain.run import (
    DatasetRef,
    Environment,
    GitState,
    ResumeFrom,
    Run,
    RunEvent,
    RunEventKind,
    RunPhase,
)
from hopyard.domain.run_values import MOST_RUN_VALUE_BYTES, MOST_RUN_VALUES
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.interfaces.run_store import MOST_UNSTORED, RunFilter, Summarised
from hopyard.testing.stores import ClusterStores, at, digest, exited, new_run, node, see, started, submit

GONE = RunId("r" + "z" * 26)
DONE = Exit(ExitKind.EXIT_CODE, 0, "finished")


def checkpoint(run: RunId, step: int, *, rank: int = 0) -> Checkpoint:
    return Checkpoint(
        run,
        attempt_id(run, 1),
        rank,
        step,
        digest(f"checkpoint {step}"),
        size_bytes=2**40,
        created_at=at(step),
        metrics={"val_acc": 0.5, "loss": math.inf},
        offsets={"stdout": 17},
    )


class CreateCases:
    """Accepting runs."""

    async def test_trials_are_found_by_their_study(self, stores: ClusterStores) -> None:
        study = await submit(stores, study={"name": "s"}, now=at(0))
        mine = [await submit(stores, parent=study.id, now=at(1 + n)) for n in range(2)]
        other = await submit(stores, now=at(3))
        (reread,) = await stores.runs.list(RunFilter(studies=True))
        assert (reread.id, reread.spec.study, reread.spec.parent) == (study.id, {"name": "s"}, None)
        assert [run.id for run in await stores.runs.list(RunFilter(parent=study.id))] == [
            mine[1].id,
            mine[0].id,
        ]
        assert [run.id for run in await stores.runs.list(RunFilter(trials=False))] == [other.id, study.id]
        await stores.cluster.request_stop(mine[0].id, now=at(4))
        counts = await stores.runs.count_trials([study.id, other.id])
        assert counts == {study.id: {RunPhase.QUEUED: 1, RunPhase.CANCELLED: 1}}

    async def test_orphans_are_trials_of_studies_that_are_over_or_gone(self, stores: ClusterStores) -> None:
        studies = [await submit(stores, study={"name": "s"}) for _ in range(3)]
        trials = [await submit(stores, parent=study.id) for study in studies for _ in range(2)]
        for run in (studies[1], studies[2], trials[2]):
            await stores.cluster.request_stop(run.id, now=at(1))
        await stores.runs.delete(studies[2].id)
        assert set(await stores.runs.list_orphans()) == {trials[3].id, trials[4].id, trials[5].id}

    async def test_a_run_comes_back_as_it_was_submitted(self, stores: ClusterStores) -> None:
        new = new_run(
            label="first",
            params={"lr": 0.1, "epochs": 3, "name": "x", "flag": True, "none": None, "nan": math.inf},
            tags={"team": "vision"},
            env={"A": "é\n"},
            code=digest("code"),
            datasets=(DatasetRef("mnist", 3, digest("mnist 3")),),
            git=GitState("c" * 40, "main", True, "", digest("diff")),
            environment=Environment(
                "/usr/bin/python3", digest("requirements"), None, "3.11", {"torch": "2.0"}
            ),
            resume=ResumeFrom(GONE, 7, digest("resume")),
            time_limit_s=1.5,
        )
        (created,) = await stores.runs.create([new], now=at(0.000001))
        assert created == Run(
            id=new.id,
            name=RunName("alice", "mnist", 1),
            spec=new.spec,
            phase=RunPhase.QUEUED,
            submitted_at=at(0.000001),
            params=new.spec.params,
        )
        assert await stores.runs.get(new.id) == created
        assert await stores.runs.find_by_name(created.name) == created
        assert await stores.runs.attempts(new.id) == []

    async def test_numbers_count_per_user_and_project_without_gaps(self, stores: ClusterStores) -> None:
        news = [
            new_run(user, project=project)
            for project in ("a", "b")
            for user in ("ann", "bob")
            for _ in range(20)
        ]
        created = await asyncio.gather(*(stores.runs.create([new], now=at(0)) for new in news))
        names = sorted(run.name for (run,) in created)
        assert names == [
            RunName(user, project, n)
            for user in ("ann", "bob")
            for project in ("a", "b")
            for n in range(1, 21)
        ]

    async def test_several_runs_are_accepted_together_or_not_at_all(self, stores: ClusterStores) -> None:
        (there,) = await stores.runs.create([new_run()], now=at(0))
        fresh, clashing = new_run(), new_run("bob", id=there.id)
        with pytest.raises(Conflict):
            await stores.runs.create([fresh, clashing], now=at(0))
        with pytest.raises(NotFound):
            await stores.runs.get(fresh.id)
        assert (await submit(stores)).name.number == 2

    async def test_a_retry_gets_the_run_that_is_there(self, stores: ClusterStores) -> None:
        new = new_run(params={"a": 1, "b": 2})
        (first,) = await stores.runs.create([new], now=at(0))
        await stores.runs.record_lock(new.id, digest("lock"), {"torch": "2.0"})
        same = replace(new, spec=replace(new.spec, params={"b": 2, "a": 1}))
        (second,) = await stores.runs.create([same], now=at(5))
        assert (second.id, second.name, second.submitted_at) == (first.id, first.name, first.submitted_at)
        with pytest.raises(Conflict):
            await stores.runs.create([replace(new, spec=replace(new.spec, label="other"))], now=at(5))

    async def test_retries_at_the_same_moment_make_one_run(self, stores: ClusterStores) -> None:
        new = new_run()
        created = await asyncio.gather(*(stores.runs.create([new], now=at(0)) for _ in range(10)))
        assert {run.name.number for (run,) in created} == {1}

    async def test_one_refused_call_does_not_touch_its_neighbours(self, stores: ClusterStores) -> None:
        (there,) = await stores.runs.create([new_run()], now=at(0))
        good = [new_run() for _ in range(10)]
        bad = new_run("bob", id=there.id)
        calls = [*good[:5], bad, *good[5:]]
        results = await asyncio.gather(
            *(stores.runs.create([new], now=at(0)) for new in calls), return_exceptions=True
        )
        assert isinstance(results.pop(5), Conflict)
        assert sorted(one[0].name.number for one in results if not isinstance(one, BaseException)) == list(
            range(2, 12)
        )

    async def test_nothing_is_nothing(self, stores: ClusterStores) -> None:
        assert list(await stores.runs.create([], now=at(0))) == []


class ListCases:
    """Finding runs."""

    async def test_what_is_not_there(self, stores: ClusterStores) -> None:
        with pytest.raises(NotFound):
            await stores.runs.get(GONE)
        with pytest.raises(NotFound):
            await stores.runs.attempts(GONE)
        assert await stores.runs.find_by_name(RunName("a", "b", 1)) is None

    async def test_filters_all_hold(self, stores: ClusterStores) -> None:
        first = await submit(stores, label="Base_line", tags={"team": "vision", "x": "1"}, now=at(1))
        second = await submit(
            stores, user="bob", project="cifar", datasets=(DatasetRef("cifar", 1),), now=at(2)
        )
        third = await submit(stores, label="baseXline", tags={"team": "speech", "x": "1"}, now=at(3))
        await stores.cluster.request_stop(third.id, now=at(4))

        async def ids(**where: object) -> list[RunId]:
            return [run.id for run in await stores.runs.list(RunFilter(**where))]  # type: ignore[arg-type]

        assert await ids() == [third.id, second.id, first.id]
        assert await ids(user="bob") == [second.id]
        assert await ids(user="alice", project="mnist", phases=frozenset({RunPhase.QUEUED})) == [first.id]
        assert await ids(phases=frozenset()) == []
        assert await ids(label="Base_line") == [first.id]
        assert await ids(tags={"x": "1"}) == [third.id, first.id]
        assert await ids(tags={"x": "1", "team": "vision"}) == [first.id]
        assert await ids(dataset="cifar") == [second.id]
        assert await ids(text="base_") == [first.id]  # an underscore is itself, not any letter
        assert await ids(text="SPEECH") == [third.id]
        assert await ids(text="bob/cifar/1") == [second.id]
        assert await ids(number=1) == [second.id, first.id]
        assert await ids(id_prefix=second.id[:-1]) == [
            run for run in await ids() if run.startswith(second.id[:-1])
        ]
        assert await ids(id_prefix=second.id) == [second.id]
        assert await ids(id_prefix="r%") == await ids(id_prefix=second.id.upper()) == []
        assert await ids(limit=0) == []
        assert await ids(ids=frozenset({third.id, first.id, GONE})) == [third.id, first.id]
        assert await ids(ids=frozenset()) == []

    async def test_brief_listings_leave_out_what_makes_specs_large(self, stores: ClusterStores) -> None:
        run = await submit(
            stores,
            label="x",
            env={"K": "v" * 10**6},
            params={f"p{i}": "w" * 1000 for i in range(100)},
            tags={"a": "b"},
        )
        small = await submit(stores, label="small")
        for where in (RunFilter(brief=True), RunFilter(ids=frozenset({run.id, small.id}), brief=True)):
            newest, found = await stores.runs.list(where)
            assert (newest.id, newest.spec) == (small.id, small.spec)
            assert found.spec == brief_spec(run.spec)
            assert len(found.params) < MOST_VALUES
        assert (await stores.runs.get(run.id)).spec == run.spec
        await stores.runs.record_lock(run.id, Digest("1" * 64), {"torch": "2"})
        (found,) = await stores.runs.list(RunFilter(label="x", brief=True))
        assert (found.spec.environment.lock, found.spec.environment.packages) == ("1" * 64, {})

    async def test_pages(self, stores: ClusterStores) -> None:
        made = [await submit(stores, now=at(number // 2)) for number in range(7)]  # some at the same moment
        found: list[RunId] = []
        before: RunId | None = None
        while page := await stores.runs.list(RunFilter(limit=2, before=before)):
            found += [run.id for run in page]
            before = found[-1]
        assert found == [run.id for run in reversed(made)]

    async def test_a_board_shows_runs_with_a_summary(self, stores: ClusterStores) -> None:
        data = (DatasetRef("mnist", 1),)
        runs = [await submit(stores, datasets=data, now=at(number)) for number in range(4)]
        other = await submit(stores, datasets=(DatasetRef("cifar", 1),))
        for run in (*runs[:3], other):
            await stores.runs.record_summary(run.id, {"val_acc": 0.5})
        found = await stores.runs.summarised("mnist", limit=2)
        assert found == [Summarised(run.id, run.submitted_at, {"val_acc": 0.5}) for run in (runs[2], runs[1])]

    async def test_of_many_ids_those_are_told_that_are_runs(self, stores: ClusterStores) -> None:
        kept, deleted = [await submit(stores) for _ in range(2)]
        await stores.cluster.request_stop(deleted.id, now=at(1))
        await stores.runs.delete(deleted.id)
        others = [RunId(f"none{number}") for number in range(1500)]
        assert await stores.runs.existing([kept.id, deleted.id, *others]) == {kept.id}
        assert await stores.runs.existing([]) == frozenset()

    async def test_every_run_is_counted_in_its_phase(self, stores: ClusterStores) -> None:
        assert await stores.runs.count() == {}
        runs = [await submit(stores) for _ in range(3)]
        await stores.cluster.request_stop(runs[0].id, now=at(1))
        assert await stores.runs.count() == {RunPhase.QUEUED: 2, RunPhase.CANCELLED: 1}


class RecordCases:
    """What is written of a run while it lives."""

    async def test_values_are_merged_name_by_name(self, stores: ClusterStores) -> None:
        run = (await submit(stores, params={"lr": 0.1, "epochs": 3})).id
        await stores.runs.record_params(run, {"lr": 0.5, "new": "x"})
        await stores.runs.record_summary(run, {"a": 1.0, "b": math.inf})
        await stores.runs.record_summary(run, {"b": -math.inf, "c": 3.0})
        found = await stores.runs.get(run)
        assert found.params == {"lr": 0.5, "epochs": 3, "new": "x"}
        assert found.spec.params == {"lr": 0.1, "epochs": 3}
        assert found.summary == {"a": 1.0, "b": -math.inf, "c": 3.0}

    async def test_a_run_has_so_many_values_and_those_that_it_has_go_on(self, stores: ClusterStores) -> None:
        run = (await submit(stores, params={"lr": 0.1})).id
        for part in range(3):
            values = {f"m{part}-{n}": float(n) for n in range(MOST_RUN_VALUES // 2)}
            await stores.runs.record_summary(run, values)
            await stores.runs.record_metrics(run, {name: (part, value) for name, value in values.items()})
            await stores.runs.record_params(
                run, {f"p{part}-{n}": "x" * 10_000 for n in range(MOST_RUN_VALUE_BYTES // 20_000)}
            )
        await stores.runs.record_summary(run, {"m0-1": 7.0, "late": 1.0})
        await stores.runs.record_metrics(run, {"m0-1": (9, 7.0), "late": (9, 1.0)})
        await stores.runs.record_params(run, {"lr": 0.5, "late": "x" * 10_000})
        found, latest = await stores.runs.get(run), (await stores.runs.latest_metrics([run]))[run]
        assert len(found.summary) == len(latest) == MOST_RUN_VALUES
        assert (found.summary["m0-1"], latest["m0-1"], found.params["lr"]) == (7.0, (9, 7.0), 0.5)
        assert not {"late"} & (found.summary.keys() | latest.keys() | found.params.keys())
        await stores.runs.record_metrics(run, {"late": (9, 1.0)}, anew=True)
        assert (await stores.runs.latest_metrics([run]))[run] == {"late": (9, 1.0)}

    async def test_the_machines_variables_that_a_run_got(self, stores: ClusterStores) -> None:
        run = (await submit(stores)).id
        assert await stores.runs.machine_env(run) == await stores.runs.machine_env(GONE) == {}
        await stores.runs.record_machine_env(run, {"PATH": "/bin", "TZ": "UTC"})
        await stores.runs.record_machine_env(run, {"PATH": "/usr/bin", "HF_HOME": None})
        assert await stores.runs.machine_env(run) == {"PATH": "/usr/bin", "HF_HOME": None}

    async def test_latest_metrics(self, stores: ClusterStores) -> None:
        one, two = (await submit(stores)).id, (await submit(stores)).id
        await stores.runs.record_metrics(one, {"loss": (1, 0.5), "acc": (1, 0.1)})
        await stores.runs.record_metrics(one, {"gone": (7, 0.0)})
        await stores.runs.record_metrics(one, {"acc": (1, 0.1)}, anew=True)
        await stores.runs.record_metrics(one, {"loss": (2, math.nan)})
        found = await stores.runs.latest_metrics([one, two])
        assert found[two] == {}
        assert (set(found[one]), found[one]["acc"]) == ({"acc", "loss"}, (1, 0.1))
        step, value = found[one]["loss"]
        assert step == 2
        assert math.isnan(value)

    async def test_concurrent_records_of_one_run_all_stay(self, stores: ClusterStores) -> None:
        run = (await submit(stores)).id
        await asyncio.gather(
            *(stores.runs.record_summary(run, {f"m{number}": float(number)}) for number in range(30))
        )
        assert (await stores.runs.get(run)).summary == {f"m{number}": float(number) for number in range(30)}

    async def test_artifact_and_lock(self, stores: ClusterStores) -> None:
        run = (await submit(stores)).id
        await stores.runs.record_artifact(run, digest("made"))
        await stores.runs.record_lock(run, digest("lock"), {"torch": "2.0"})
        found = await stores.runs.get(run)
        assert found.artifact == digest("made")
        assert found.spec.environment == Environment(lock=digest("lock"), packages={"torch": "2.0"})

    async def test_what_could_not_be_stored_is_kept_once_and_only_the_first_of_many(
        self, stores: ClusterStores
    ) -> None:
        run = (await submit(stores)).id
        assert (await stores.runs.get(run)).unstored == ()
        await stores.runs.record_unstored(run, ["step 5", "step 6"])
        await stores.runs.record_unstored(run, ["step 6", *(f"step {step}" for step in range(7, 100))])
        assert (await stores.runs.get(run)).unstored == tuple(
            f"step {step}" for step in range(5, 5 + MOST_UNSTORED)
        )

    async def test_checkpoints(self, stores: ClusterStores) -> None:
        run = (await submit(stores)).id
        for step in (10, 5, 20):  # in the order of saving, not of steps
            await stores.runs.record_checkpoint(checkpoint(run, step))
        await stores.runs.record_checkpoint(replace(checkpoint(run, 5), manifest=digest("again")))
        await stores.runs.keep_checkpoint(run, 5, True)
        saved = [checkpoint(run, 10), replace(checkpoint(run, 5), kept=True), checkpoint(run, 20)]
        assert await stores.runs.checkpoints(run) == saved
        await stores.runs.delete_checkpoints(run, [10, 99])
        assert await stores.runs.checkpoints(run) == saved[1:]
        with pytest.raises(NotFound):
            await stores.runs.keep_checkpoint(run, 10, True)

    async def test_a_damaged_checkpoint_is_used_no_more_and_still_known(self, stores: ClusterStores) -> None:
        run = (await submit(stores)).id
        for step in (10, 20):
            await stores.runs.record_checkpoint(checkpoint(run, step))
        assert await stores.runs.mark_damaged(run, 20, "a blob is damaged", now=at(5))
        assert not await stores.runs.mark_damaged(run, 20, "again", now=at(6))
        assert not await stores.runs.mark_damaged(run, 30, "there is none", now=at(6))
        assert await stores.runs.checkpoints(run) == [checkpoint(run, 10)]
        assert await stores.runs.checkpoints(run, damaged=True) == [
            checkpoint(run, 10),
            replace(checkpoint(run, 20), damaged=True),
        ]
        assert await stores.runs.newest_steps([run]) == {run: 10}
        assert await stores.runs.events(run) == [RunEvent(at(5), RunEventKind.DAMAGED, "a blob is damaged")]
        with pytest.raises(NotFound):
            await stores.runs.mark_damaged(GONE, 1, "gone", now=at(6))

    async def test_the_newest_checkpoint_of_several_runs(self, stores: ClusterStores) -> None:
        one, two, none = [(await submit(stores)).id for _ in range(3)]
        for run, step in ((one, 10), (two, 7), (one, 5)):
            await stores.runs.record_checkpoint(checkpoint(run, step))
        assert await stores.runs.newest_steps([one, two, none, GONE]) == {one: 5, two: 7}
        assert await stores.runs.newest_steps([]) == {}

    async def test_recording_of_a_run_that_is_gone_is_refused(self, stores: ClusterStores) -> None:
        for record in (
            stores.runs.record_params(GONE, {"a": 1}),
            stores.runs.record_machine_env(GONE, {}),
            stores.runs.record_summary(GONE, {"a": 1.0}),
            stores.runs.record_metrics(GONE, {"a": (1, 1.0)}),
            stores.runs.record_artifact(GONE, digest("x")),
            stores.runs.record_unstored(GONE, ["step 5"]),
            stores.runs.record_lock(GONE, digest("x"), {}),
            stores.runs.record_checkpoint(checkpoint(GONE, 1)),
        ):
            with pytest.raises(NotFound):
                await record


class EndCases:
    """Offline runs, and forgetting."""

    async def test_an_offline_run_is_never_queued(self, stores: ClusterStores) -> None:
        (run,) = await stores.runs.create([new_run(offline=True)], now=at(0))
        assert (run.phase, run.attempt, run.being_synced) == (RunPhase.RUNNING, None, True)
        assert (await stores.runs.get(run.id)) == run
        snapshot = await stores.cluster.snapshot(now=at(1))
        assert (snapshot.pending, snapshot.running, await stores.runs.count()) == ((), (), {})
        await stores.runs.record_synced(run.id, at(3))
        assert (await stores.runs.get(run.id)).synced_at == at(3)
        for _ in range(2):
            await stores.runs.finish_offline(
                run.id, AttemptPhase.SUCCEEDED, DONE, started_at=at(0), ended_at=at(9)
            )
        found = await stores.runs.get(run.id)
        assert (found.phase, found.exit, found.started_at, found.ended_at) == (
            RunPhase.SUCCEEDED,
            DONE,
            at(0),
            at(9),
        )
        assert [attempt.id for attempt in await stores.runs.attempts(run.id)] == [attempt_id(run.id, 1)]

    async def test_a_run_that_is_being_synced_is_not_stopped_nor_lost_and_can_be_deleted(
        self, stores: ClusterStores
    ) -> None:
        (run,) = await stores.runs.create([new_run(offline=True)], now=at(0))
        with pytest.raises(Conflict, match="being synced"):
            await stores.cluster.request_stop(run.id, now=at(1))
        await stores.cluster.request_preempt(run.id, "room", now=at(1))
        await see(stores, nodes=[node()])
        assert await stores.runs.get(run.id) == run
        assert [one.id for one in await stores.runs.list(RunFilter(offline=True))] == [run.id]
        assert await stores.runs.list(RunFilter(offline=False)) == []
        await stores.runs.delete(run.id)
        with pytest.raises(NotFound):
            await stores.runs.get(run.id)

    async def test_only_an_offline_run_is_finished_so(self, stores: ClusterStores) -> None:
        run = (await submit(stores)).id
        with pytest.raises(Conflict):
            await stores.runs.finish_offline(run, AttemptPhase.FAILED, DONE, started_at=at(0), ended_at=at(9))
        with pytest.raises(SpecError):
            await stores.runs.finish_offline(
                run, AttemptPhase.RUNNING, DONE, started_at=at(0), ended_at=at(9)
            )
        with pytest.raises(NotFound):
            await stores.runs.finish_offline(
                GONE, AttemptPhase.FAILED, DONE, started_at=at(0), ended_at=at(9)
            )

    async def test_delete(self, stores: ClusterStores) -> None:
        run, attempt = await started(stores, tags={"a": "b"}, datasets=(DatasetRef("mnist", 1),))
        await stores.runs.record_checkpoint(checkpoint(run, 1))
        with pytest.raises(Conflict):
            await stores.runs.delete(run)
        await see(stores, exited(attempt))
        await stores.runs.delete(run)
        with pytest.raises(NotFound):
            await stores.runs.get(run)
        with pytest.raises(NotFound):
            await stores.cluster.replicas(attempt)
        with pytest.raises(NotFound):
            await stores.runs.delete(run)
        assert (await submit(stores)).name.number == 2  # its number does not come again
