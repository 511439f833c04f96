"""What every RunStore does."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind
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
from hopyard.domain.run_values import MAX_RUN_VALUE_BYTES, MAX_RUN_VALUES
from hopyard.domain.spec_summary import MAX_VALUES, summarise_spec
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.interfaces.run_store import MAX_UNSTORED_MESSAGES, RunFilter, RunSummary
from hopyard.testing.stores import (
    ClusterStores,
    exited_status,
    make_digest,
    make_node,
    new_run,
    record_observation,
    started_run,
    submit_run,
    time_at,
)

MISSING_RUN = RunId("r" + "z" * 26)
SUCCESS_EXIT = Exit(ExitKind.EXIT_CODE, 0, "finished")


def checkpoint(run: RunId, step: int, *, rank: int = 0) -> Checkpoint:
    return Checkpoint(
        run,
        attempt_id(run, 1),
        rank,
        step,
        make_digest(f"checkpoint {step}"),
        size_bytes=2**40,
        created_at=time_at(step),
        metrics={"val_acc": 0.5, "loss": math.inf},
        offsets={"stdout": 17},
    )


class CreateCases:
    """Accepting runs."""

    async def test_trials_are_found_by_their_study(self, stores: ClusterStores) -> None:
        study = await submit_run(stores, study={"name": "s"}, now=time_at(0))
        mine = [await submit_run(stores, parent=study.id, now=time_at(1 + n)) for n in range(2)]
        other = await submit_run(stores, now=time_at(3))
        (reread,) = await stores.runs.list(RunFilter(studies=True))
        assert (reread.id, reread.spec.study, reread.spec.parent) == (study.id, {"name": "s"}, None)
        assert [run.id for run in await stores.runs.list(RunFilter(parent=study.id))] == [
            mine[1].id,
            mine[0].id,
        ]
        assert [run.id for run in await stores.runs.list(RunFilter(trials=False))] == [other.id, study.id]
        await stores.cluster.request_stop(mine[0].id, now=time_at(4))
        counts = await stores.runs.count_trials([study.id, other.id])
        assert counts == {study.id: {RunPhase.QUEUED: 1, RunPhase.CANCELLED: 1}}

    async def test_orphans_are_trials_of_studies_that_are_over_or_gone(self, stores: ClusterStores) -> None:
        studies = [await submit_run(stores, study={"name": "s"}) for _ in range(3)]
        trials = [await submit_run(stores, parent=study.id) for study in studies for _ in range(2)]
        for run in (studies[1], studies[2], trials[2]):
            await stores.cluster.request_stop(run.id, now=time_at(1))
        await stores.runs.delete(studies[2].id)
        assert set(await stores.runs.list_orphans()) == {trials[3].id, trials[4].id, trials[5].id}

    async def test_a_run_comes_back_as_it_was_submitted(self, stores: ClusterStores) -> None:
        new = new_run(
            label="first",
            params={"lr": 0.1, "epochs": 3, "name": "x", "flag": True, "none": None, "nan": math.inf},
            tags={"team": "vision"},
            env={"A": "é\n"},
            code=make_digest("code"),
            datasets=(DatasetRef("mnist", 3, make_digest("mnist 3")),),
            git=GitState("c" * 40, "main", True, "", make_digest("diff")),
            environment=Environment(
                "/usr/bin/python3", make_digest("requirements"), None, "3.11", {"torch": "2.0"}
            ),
            resume=ResumeFrom(MISSING_RUN, 7, make_digest("resume")),
            time_limit_s=1.5,
        )
        (created,) = await stores.runs.create([new], now=time_at(0.000001))
        assert created == Run(
            id=new.id,
            name=RunName("alice", "mnist", 1),
            spec=new.spec,
            phase=RunPhase.QUEUED,
            submitted_at=time_at(0.000001),
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
        created = await asyncio.gather(*(stores.runs.create([new], now=time_at(0)) for new in news))
        names = sorted(run.name for (run,) in created)
        assert names == [
            RunName(user, project, n)
            for user in ("ann", "bob")
            for project in ("a", "b")
            for n in range(1, 21)
        ]

    async def test_several_runs_are_accepted_together_or_not_at_all(self, stores: ClusterStores) -> None:
        (there,) = await stores.runs.create([new_run()], now=time_at(0))
        fresh, clashing = new_run(), new_run("bob", id=there.id)
        with pytest.raises(Conflict):
            await stores.runs.create([fresh, clashing], now=time_at(0))
        with pytest.raises(NotFound):
            await stores.runs.get(fresh.id)
        assert (await submit_run(stores)).name.number == 2

    async def test_a_retry_gets_the_run_that_is_there(self, stores: ClusterStores) -> None:
        new = new_run(params={"a": 1, "b": 2})
        (first,) = await stores.runs.create([new], now=time_at(0))
        await stores.runs.record_lock(new.id, make_digest("lock"), {"torch": "2.0"})
        same = replace(new, spec=replace(new.spec, params={"b": 2, "a": 1}))
        (second,) = await stores.runs.create([same], now=time_at(5))
        assert (second.id, second.name, second.submitted_at) == (first.id, first.name, first.submitted_at)
        with pytest.raises(Conflict):
            await stores.runs.create([replace(new, spec=replace(new.spec, label="other"))], now=time_at(5))

    async def test_retries_at_the_same_moment_make_one_run(self, stores: ClusterStores) -> None:
        new = new_run()
        created = await asyncio.gather(*(stores.runs.create([new], now=time_at(0)) for _ in range(10)))
        assert {run.name.number for (run,) in created} == {1}

    async def test_one_refused_call_does_not_touch_its_neighbours(self, stores: ClusterStores) -> None:
        (there,) = await stores.runs.create([new_run()], now=time_at(0))
        good = [new_run() for _ in range(10)]
        bad = new_run("bob", id=there.id)
        calls = [*good[:5], bad, *good[5:]]
        results = await asyncio.gather(
            *(stores.runs.create([new], now=time_at(0)) for new in calls), return_exceptions=True
        )
        assert isinstance(results.pop(5), Conflict)
        assert sorted(one[0].name.number for one in results if not isinstance(one, BaseException)) == list(
            range(2, 12)
        )

    async def test_nothing_is_nothing(self, stores: ClusterStores) -> None:
        assert list(await stores.runs.create([], now=time_at(0))) == []


class ListCases:
    """Finding runs."""

    async def test_what_is_not_there(self, stores: ClusterStores) -> None:
        with pytest.raises(NotFound):
            await stores.runs.get(MISSING_RUN)
        with pytest.raises(NotFound):
            await stores.runs.attempts(MISSING_RUN)
        assert await stores.runs.find_by_name(RunName("a", "b", 1)) is None

    async def test_filters_all_hold(self, stores: ClusterStores) -> None:
        first = await submit_run(stores, label="Base_line", tags={"team": "vision", "x": "1"}, now=time_at(1))
        second = await submit_run(
            stores, user="bob", project="cifar", datasets=(DatasetRef("cifar", 1),), now=time_at(2)
        )
        third = await submit_run(stores, label="baseXline", tags={"team": "speech", "x": "1"}, now=time_at(3))
        await stores.cluster.request_stop(third.id, now=time_at(4))

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
        assert await ids(ids=frozenset({third.id, first.id, MISSING_RUN})) == [third.id, first.id]
        assert await ids(ids=frozenset()) == []

    async def test_brief_listings_leave_out_what_makes_specs_large(self, stores: ClusterStores) -> None:
        run = await submit_run(
            stores,
            label="x",
            env={"K": "v" * 10**6},
            params={f"p{i}": "w" * 1000 for i in range(100)},
            tags={"a": "b"},
        )
        small = await submit_run(stores, label="small")
        for where in (RunFilter(brief=True), RunFilter(ids=frozenset({run.id, small.id}), brief=True)):
            newest, found = await stores.runs.list(where)
            assert (newest.id, newest.spec) == (small.id, small.spec)
            assert found.spec == summarise_spec(run.spec)
            assert len(found.params) < MAX_VALUES
        assert (await stores.runs.get(run.id)).spec == run.spec
        await stores.runs.record_lock(run.id, Digest("1" * 64), {"torch": "2"})
        (found,) = await stores.runs.list(RunFilter(label="x", brief=True))
        assert (found.spec.environment.lock, found.spec.environment.packages) == ("1" * 64, {})

    async def test_pages(self, stores: ClusterStores) -> None:
        # some at the same moment
        made = [await submit_run(stores, now=time_at(number // 2)) for number in range(7)]
        found: list[RunId] = []
        before: RunId | None = None
        while page := await stores.runs.list(RunFilter(limit=2, before=before)):
            found += [run.id for run in page]
            before = found[-1]
        assert found == [run.id for run in reversed(made)]

    async def test_a_board_shows_runs_with_a_summary(self, stores: ClusterStores) -> None:
        data = (DatasetRef("mnist", 1),)
        runs = [await submit_run(stores, datasets=data, now=time_at(number)) for number in range(4)]
        other = await submit_run(stores, datasets=(DatasetRef("cifar", 1),))
        for run in (*runs[:3], other):
            await stores.runs.record_summary(run.id, {"val_acc": 0.5})
        found = await stores.runs.list_summaries("mnist", limit=2)
        assert found == [RunSummary(run.id, run.submitted_at, {"val_acc": 0.5}) for run in (runs[2], runs[1])]

    async def test_of_many_ids_those_are_told_that_are_runs(self, stores: ClusterStores) -> None:
        kept, deleted = [await submit_run(stores) for _ in range(2)]
        await stores.cluster.request_stop(deleted.id, now=time_at(1))
        await stores.runs.delete(deleted.id)
        others = [RunId(f"none{number}") for number in range(1500)]
        assert await stores.runs.find_existing([kept.id, deleted.id, *others]) == {kept.id}
        assert await stores.runs.find_existing([]) == frozenset()

    async def test_every_run_is_counted_in_its_phase(self, stores: ClusterStores) -> None:
        assert await stores.runs.count_by_phase() == {}
        runs = [await submit_run(stores) for _ in range(3)]
        await stores.cluster.request_stop(runs[0].id, now=time_at(1))
        assert await stores.runs.count_by_phase() == {RunPhase.QUEUED: 2, RunPhase.CANCELLED: 1}


class RecordCases:
    """What is written of a run while it lives."""

    async def test_values_are_merged_name_by_name(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores, params={"lr": 0.1, "epochs": 3})).id
        await stores.runs.record_params(run, {"lr": 0.5, "new": "x"})
        await stores.runs.record_summary(run, {"a": 1.0, "b": math.inf})
        await stores.runs.record_summary(run, {"b": -math.inf, "c": 3.0})
        found = await stores.runs.get(run)
        assert found.params == {"lr": 0.5, "epochs": 3, "new": "x"}
        assert found.spec.params == {"lr": 0.1, "epochs": 3}
        assert found.summary == {"a": 1.0, "b": -math.inf, "c": 3.0}

    async def test_a_run_has_so_many_values_and_those_that_it_has_go_on(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores, params={"lr": 0.1})).id
        for part in range(3):
            values = {f"m{part}-{n}": float(n) for n in range(MAX_RUN_VALUES // 2)}
            await stores.runs.record_summary(run, values)
            await stores.runs.record_metrics(run, {name: (part, value) for name, value in values.items()})
            await stores.runs.record_params(
                run, {f"p{part}-{n}": "x" * 10_000 for n in range(MAX_RUN_VALUE_BYTES // 20_000)}
            )
        await stores.runs.record_summary(run, {"m0-1": 7.0, "late": 1.0})
        await stores.runs.record_metrics(run, {"m0-1": (9, 7.0), "late": (9, 1.0)})
        await stores.runs.record_params(run, {"lr": 0.5, "late": "x" * 10_000})
        found, latest = await stores.runs.get(run), (await stores.runs.latest_metrics([run]))[run]
        assert len(found.summary) == len(latest) == MAX_RUN_VALUES
        assert (found.summary["m0-1"], latest["m0-1"], found.params["lr"]) == (7.0, (9, 7.0), 0.5)
        assert not {"late"} & (found.summary.keys() | latest.keys() | found.params.keys())
        await stores.runs.record_metrics(run, {"late": (9, 1.0)}, replace_all=True)
        assert (await stores.runs.latest_metrics([run]))[run] == {"late": (9, 1.0)}

    async def test_the_machines_variables_that_a_run_got(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        assert await stores.runs.machine_env(run) == await stores.runs.machine_env(MISSING_RUN) == {}
        await stores.runs.record_machine_env(run, {"PATH": "/bin", "TZ": "UTC"})
        await stores.runs.record_machine_env(run, {"PATH": "/usr/bin", "HF_HOME": None})
        assert await stores.runs.machine_env(run) == {"PATH": "/usr/bin", "HF_HOME": None}

    async def test_latest_metrics(self, stores: ClusterStores) -> None:
        one, two = (await submit_run(stores)).id, (await submit_run(stores)).id
        await stores.runs.record_metrics(one, {"loss": (1, 0.5), "acc": (1, 0.1)})
        await stores.runs.record_metrics(one, {"gone": (7, 0.0)})
        await stores.runs.record_metrics(one, {"acc": (1, 0.1)}, replace_all=True)
        await stores.runs.record_metrics(one, {"loss": (2, math.nan)})
        found = await stores.runs.latest_metrics([one, two])
        assert found[two] == {}
        assert (set(found[one]), found[one]["acc"]) == ({"acc", "loss"}, (1, 0.1))
        step, value = found[one]["loss"]
        assert step == 2
        assert math.isnan(value)

    async def test_concurrent_records_of_one_run_all_stay(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        await asyncio.gather(
            *(stores.runs.record_summary(run, {f"m{number}": float(number)}) for number in range(30))
        )
        assert (await stores.runs.get(run)).summary == {f"m{number}": float(number) for number in range(30)}

    async def test_artifact_and_lock(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        await stores.runs.record_artifact(run, make_digest("made"))
        await stores.runs.record_lock(run, make_digest("lock"), {"torch": "2.0"})
        found = await stores.runs.get(run)
        assert found.artifact == make_digest("made")
        assert found.spec.environment == Environment(lock=make_digest("lock"), packages={"torch": "2.0"})

    async def test_what_could_not_be_stored_is_kept_once_and_only_the_first_of_many(
        self, stores: ClusterStores
    ) -> None:
        run = (await submit_run(stores)).id
        assert (await stores.runs.get(run)).unstored == ()
        await stores.runs.record_unstored(run, ["step 5", "step 6"])
        await stores.runs.record_unstored(run, ["step 6", *(f"step {step}" for step in range(7, 100))])
        assert (await stores.runs.get(run)).unstored == tuple(
            f"step {step}" for step in range(5, 5 + MAX_UNSTORED_MESSAGES)
        )

    async def test_checkpoints(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        for step in (10, 5, 20):  # in the order of saving, not of steps
            await stores.runs.record_checkpoint(checkpoint(run, step))
        await stores.runs.record_checkpoint(replace(checkpoint(run, 5), manifest=make_digest("again")))
        await stores.runs.set_checkpoint_kept(run, 5, True)
        saved = [checkpoint(run, 10), replace(checkpoint(run, 5), kept=True), checkpoint(run, 20)]
        assert await stores.runs.checkpoints(run) == saved
        await stores.runs.delete_checkpoints(run, [10, 99])
        assert await stores.runs.checkpoints(run) == saved[1:]
        with pytest.raises(NotFound):
            await stores.runs.set_checkpoint_kept(run, 10, True)

    async def test_a_damaged_checkpoint_is_used_no_more_and_still_known(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        for step in (10, 20):
            await stores.runs.record_checkpoint(checkpoint(run, step))
        assert await stores.runs.mark_damaged(run, 20, "a blob is damaged", now=time_at(5))
        assert not await stores.runs.mark_damaged(run, 20, "again", now=time_at(6))
        assert not await stores.runs.mark_damaged(run, 30, "there is none", now=time_at(6))
        assert await stores.runs.checkpoints(run) == [checkpoint(run, 10)]
        assert await stores.runs.checkpoints(run, damaged=True) == [
            checkpoint(run, 10),
            replace(checkpoint(run, 20), damaged=True),
        ]
        assert await stores.runs.newest_steps([run]) == {run: 10}
        assert await stores.runs.events(run) == [
            RunEvent(time_at(5), RunEventKind.DAMAGED, "a blob is damaged")
        ]
        with pytest.raises(NotFound):
            await stores.runs.mark_damaged(MISSING_RUN, 1, "gone", now=time_at(6))

    async def test_the_newest_checkpoint_of_several_runs(self, stores: ClusterStores) -> None:
        one, two, none = [(await submit_run(stores)).id for _ in range(3)]
        for run, step in ((one, 10), (two, 7), (one, 5)):
            await stores.runs.record_checkpoint(checkpoint(run, step))
        assert await stores.runs.newest_steps([one, two, none, MISSING_RUN]) == {one: 5, two: 7}
        assert await stores.runs.newest_steps([]) == {}

    async def test_recording_of_a_run_that_is_gone_is_refused(self, stores: ClusterStores) -> None:
        for record in (
            stores.runs.record_params(MISSING_RUN, {"a": 1}),
            stores.runs.record_machine_env(MISSING_RUN, {}),
            stores.runs.record_summary(MISSING_RUN, {"a": 1.0}),
            stores.runs.record_metrics(MISSING_RUN, {"a": (1, 1.0)}),
            stores.runs.record_artifact(MISSING_RUN, make_digest("x")),
            stores.runs.record_unstored(MISSING_RUN, ["step 5"]),
            stores.runs.record_lock(MISSING_RUN, make_digest("x"), {}),
            stores.runs.record_checkpoint(checkpoint(MISSING_RUN, 1)),
        ):
            with pytest.raises(NotFound):
                await record


class EndCases:
    """Offline runs, and forgetting."""

    async def test_an_offline_run_is_never_queued(self, stores: ClusterStores) -> None:
        (run,) = await stores.runs.create([new_run(offline=True)], now=time_at(0))
        assert (run.phase, run.attempt, run.is_being_synced) == (RunPhase.RUNNING, None, True)
        assert (await stores.runs.get(run.id)) == run
        snapshot = await stores.cluster.snapshot(now=time_at(1))
        assert (snapshot.pending, snapshot.running, await stores.runs.count_by_phase()) == ((), (), {})
        await stores.runs.record_synced(run.id, time_at(3))
        assert (await stores.runs.get(run.id)).synced_at == time_at(3)
        for _ in range(2):
            await stores.runs.finish_offline(
                run.id, AttemptPhase.SUCCEEDED, SUCCESS_EXIT, started_at=time_at(0), ended_at=time_at(9)
            )
        found = await stores.runs.get(run.id)
        assert (found.phase, found.exit, found.started_at, found.ended_at) == (
            RunPhase.SUCCEEDED,
            SUCCESS_EXIT,
            time_at(0),
            time_at(9),
        )
        assert [attempt.id for attempt in await stores.runs.attempts(run.id)] == [attempt_id(run.id, 1)]

    async def test_a_run_that_is_being_synced_is_not_stopped_nor_lost_and_can_be_deleted(
        self, stores: ClusterStores
    ) -> None:
        (run,) = await stores.runs.create([new_run(offline=True)], now=time_at(0))
        with pytest.raises(Conflict, match="being synced"):
            await stores.cluster.request_stop(run.id, now=time_at(1))
        await stores.cluster.request_preempt(run.id, "room", now=time_at(1))
        await record_observation(stores, nodes=[make_node()])
        assert await stores.runs.get(run.id) == run
        assert [one.id for one in await stores.runs.list(RunFilter(offline=True))] == [run.id]
        assert await stores.runs.list(RunFilter(offline=False)) == []
        await stores.runs.delete(run.id)
        with pytest.raises(NotFound):
            await stores.runs.get(run.id)

    async def test_only_an_offline_run_is_finished_so(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        with pytest.raises(Conflict):
            await stores.runs.finish_offline(
                run, AttemptPhase.FAILED, SUCCESS_EXIT, started_at=time_at(0), ended_at=time_at(9)
            )
        with pytest.raises(SpecError):
            await stores.runs.finish_offline(
                run, AttemptPhase.RUNNING, SUCCESS_EXIT, started_at=time_at(0), ended_at=time_at(9)
            )
        with pytest.raises(NotFound):
            await stores.runs.finish_offline(
                MISSING_RUN, AttemptPhase.FAILED, SUCCESS_EXIT, started_at=time_at(0), ended_at=time_at(9)
            )

    async def test_delete(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, tags={"a": "b"}, datasets=(DatasetRef("mnist", 1),))
        await stores.runs.record_checkpoint(checkpoint(run, 1))
        with pytest.raises(Conflict):
            await stores.runs.delete(run)
        await record_observation(stores, exited_status(attempt))
        await stores.runs.delete(run)
        with pytest.raises(NotFound):
            await stores.runs.get(run)
        with pytest.raises(NotFound):
            await stores.cluster.replicas(attempt)
        with pytest.raises(NotFound):
            await stores.runs.delete(run)
        assert (await submit_run(stores)).name.number == 2  # its number does not come again
