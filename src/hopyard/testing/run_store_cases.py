"""Cases of every RunStore."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
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
from hopyard.domain.run_query import run_values
from hopyard.domain.run_values import MAX_RUN_VALUE_BYTES, MAX_RUN_VALUES
from hopyard.domain.script_tags import ScriptTags
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
    """Runs are created."""

    async def test_trials_are_listed_by_study(self, stores: ClusterStores) -> None:
        study = await submit_run(stores, study={"name": "s"}, now=time_at(0))
        trials = [await submit_run(stores, parent=study.id, now=time_at(1 + number)) for number in range(2)]
        other = await submit_run(stores, now=time_at(3))
        (stored,) = await stores.runs.list(RunFilter(studies=True))
        assert (stored.id, stored.spec.study, stored.spec.parent) == (study.id, {"name": "s"}, None)
        assert [run.id for run in await stores.runs.list(RunFilter(parent=study.id))] == [
            trials[1].id,
            trials[0].id,
        ]
        assert [run.id for run in await stores.runs.list(RunFilter(trials=False))] == [other.id, study.id]
        await stores.cluster.request_stop(trials[0].id, now=time_at(4))
        counts = await stores.runs.count_trials([study.id, other.id])
        assert counts == {study.id: {RunPhase.QUEUED: 1, RunPhase.CANCELLED: 1}}

    async def test_events_of_one_kind_are_read_for_several_runs(self, stores: ClusterStores) -> None:
        runs = [await submit_run(stores, now=time_at(number)) for number in range(3)]
        kinds = (RunEventKind.EVALUATION, RunEventKind.DAMAGED, RunEventKind.EVALUATION)
        events = [RunEvent(time_at(number), kind, str(number)) for number, kind in enumerate(kinds)]
        for event in events:
            await stores.runs.record_event(runs[0].id, event)
        await stores.runs.record_event(runs[1].id, events[1])
        ids = [*(run.id for run in runs), MISSING_RUN]
        found = await stores.runs.events_of(ids, RunEventKind.EVALUATION)
        assert {run: list(each) for run, each in found.items()} == {runs[0].id: [events[0], events[2]]}
        assert not await stores.runs.events_of([], RunEventKind.EVALUATION)

    async def test_orphans_are_trials_of_ended_or_deleted_studies(self, stores: ClusterStores) -> None:
        studies = [await submit_run(stores, study={"name": "s"}) for _ in range(3)]
        trials = [await submit_run(stores, parent=study.id) for study in studies for _ in range(2)]
        for run in (studies[1], studies[2], trials[2]):
            await stores.cluster.request_stop(run.id, now=time_at(1))
        await stores.runs.delete(studies[2].id)
        assert set(await stores.runs.list_orphans()) == {trials[3].id, trials[4].id, trials[5].id}

    async def test_run_is_stored_as_submitted(self, stores: ClusterStores) -> None:
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

    async def test_run_numbers_count_per_user_and_project(self, stores: ClusterStores) -> None:
        new_runs = [
            new_run(user, project=project)
            for project in ("a", "b")
            for user in ("ann", "bob")
            for _ in range(20)
        ]
        created = await asyncio.gather(*(stores.runs.create([new], now=time_at(0)) for new in new_runs))
        names = sorted(run.name for (run,) in created)
        assert names == [
            RunName(user, project, number)
            for user in ("ann", "bob")
            for project in ("a", "b")
            for number in range(1, 21)
        ]

    async def test_runs_of_one_call_are_created_all_or_none(self, stores: ClusterStores) -> None:
        (existing,) = await stores.runs.create([new_run()], now=time_at(0))
        accepted, clashing = new_run(), new_run("bob", id=existing.id)
        with pytest.raises(Conflict):
            await stores.runs.create([accepted, clashing], now=time_at(0))
        with pytest.raises(NotFound):
            await stores.runs.get(accepted.id)
        assert (await submit_run(stores)).name.number == 2

    async def test_retry_returns_existing_run(self, stores: ClusterStores) -> None:
        new = new_run(params={"a": 1, "b": 2})
        (first,) = await stores.runs.create([new], now=time_at(0))
        await stores.runs.record_lock(new.id, make_digest("lock"), {"torch": "2.0"})
        same = replace(new, spec=replace(new.spec, params={"b": 2, "a": 1}))
        (second,) = await stores.runs.create([same], now=time_at(5))
        assert (second.id, second.name, second.submitted_at) == (first.id, first.name, first.submitted_at)
        with pytest.raises(Conflict):
            await stores.runs.create([replace(new, spec=replace(new.spec, label="other"))], now=time_at(5))

    async def test_concurrent_retries_create_one_run(self, stores: ClusterStores) -> None:
        new = new_run()
        created = await asyncio.gather(*(stores.runs.create([new], now=time_at(0)) for _ in range(10)))
        assert {run.name.number for (run,) in created} == {1}

    async def test_rejected_call_does_not_affect_concurrent_calls(self, stores: ClusterStores) -> None:
        (existing,) = await stores.runs.create([new_run()], now=time_at(0))
        new_runs = [new_run() for _ in range(10)]
        conflicting = new_run("bob", id=existing.id)
        calls = [*new_runs[:5], conflicting, *new_runs[5:]]
        results = await asyncio.gather(
            *(stores.runs.create([new], now=time_at(0)) for new in calls), return_exceptions=True
        )
        assert isinstance(results.pop(5), Conflict)
        assert sorted(
            result[0].name.number for result in results if not isinstance(result, BaseException)
        ) == list(range(2, 12))

    async def test_create_without_runs(self, stores: ClusterStores) -> None:
        assert list(await stores.runs.create([], now=time_at(0))) == []


class ListCases:
    """Runs are found and listed."""

    async def test_unknown_run_is_not_found(self, stores: ClusterStores) -> None:
        with pytest.raises(NotFound):
            await stores.runs.get(MISSING_RUN)
        with pytest.raises(NotFound):
            await stores.runs.attempts(MISSING_RUN)
        assert await stores.runs.find_by_name(RunName("a", "b", 1)) is None

    async def test_all_conditions_of_run_filter_hold(self, stores: ClusterStores) -> None:
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
        assert await ids(text="base_") == [first.id]  # an underscore matches itself only
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

    async def test_query_values_of_matching_runs(self, stores: ClusterStores) -> None:
        run = await submit_run(
            stores,
            label="x",
            params={"lr": 0.1, "n": 3},
            tags={"team": "a"},
            datasets=(DatasetRef("mnist", 1),),
            now=time_at(1),
        )
        other = await submit_run(stores, user="bob", params={"lr": float("nan")}, now=time_at(2))
        await stores.runs.record_params(run.id, {"n": 4})
        await stores.runs.record_summary(run.id, {"acc": 0.5})
        await stores.runs.record_metrics(run.id, {"loss": (7, 0.25)})
        rows = await stores.runs.query_values(RunFilter(), now=time_at(11))
        assert [row[0] for row in rows] == [other.id, run.id]
        values = rows[1][1]
        assert (values.params, values.metrics) == ({"lr": 0.1, "n": 4}, {"loss": 0.25})
        assert (values.summary, values.tags) == ({"acc": 0.5}, {"team": "a"})
        expected = run_values(await stores.runs.get(run.id), {"loss": (7, 0.25)}, now=time_at(11))
        assert values == expected
        assert (values.fields["dataset"], values.fields["age"], values.fields["took"]) == (
            "mnist",
            10.0,
            None,
        )
        assert str(rows[0][1].params["lr"]) == "nan"
        assert await stores.runs.query_values(RunFilter(user="eve"), now=time_at(11)) == []

    async def test_brief_listing_truncates_specs(self, stores: ClusterStores) -> None:
        run = await submit_run(
            stores,
            label="x",
            env={"K": "v" * 10**6},
            params={f"p{i}": "w" * 1000 for i in range(100)},
            tags={"a": "b"},
        )
        small = await submit_run(stores, label="small")
        for where in (RunFilter(brief=True), RunFilter(ids=frozenset({run.id, small.id}), brief=True)):
            newest, listed = await stores.runs.list(where)
            assert (newest.id, newest.spec) == (small.id, small.spec)
            assert listed.spec == summarise_spec(run.spec)
            assert len(listed.params) < MAX_VALUES
        assert (await stores.runs.get(run.id)).spec == run.spec
        await stores.runs.record_lock(run.id, Digest("1" * 64), {"torch": "2"})
        (listed,) = await stores.runs.list(RunFilter(label="x", brief=True))
        assert (listed.spec.environment.lock, listed.spec.environment.packages) == ("1" * 64, {})

    async def test_list_runs_in_pages(self, stores: ClusterStores) -> None:
        # some at equal times
        submitted = [await submit_run(stores, now=time_at(number // 2)) for number in range(7)]
        listed: list[RunId] = []
        before: RunId | None = None
        while page := await stores.runs.list(RunFilter(limit=2, before=before)):
            listed += [run.id for run in page]
            before = listed[-1]
        assert listed == [run.id for run in reversed(submitted)]

    async def test_leaderboard_lists_runs_with_summary(self, stores: ClusterStores) -> None:
        data = (DatasetRef("mnist", 1),)
        runs = [await submit_run(stores, datasets=data, now=time_at(number)) for number in range(4)]
        other = await submit_run(stores, datasets=(DatasetRef("cifar", 1),))
        for run in (*runs[:3], other):
            await stores.runs.record_summary(run.id, {"val_acc": 0.5})
        summaries = await stores.runs.list_summaries("mnist", limit=2)
        assert summaries == [
            RunSummary(run.id, run.submitted_at, {"val_acc": 0.5}) for run in (runs[2], runs[1])
        ]
        await stores.runs.record_metrics(runs[3].id, {"val_acc": (7, 0.25)})
        newest, *_ = await stores.runs.list_summaries("mnist", limit=2, latest=True)
        assert newest == RunSummary(runs[3].id, runs[3].submitted_at, {}, {"val_acc": (7, 0.25)})

    async def test_existing_runs_of_many_ids(self, stores: ClusterStores) -> None:
        kept, deleted = [await submit_run(stores) for _ in range(2)]
        await stores.cluster.request_stop(deleted.id, now=time_at(1))
        await stores.runs.delete(deleted.id)
        others = [RunId(f"none{number}") for number in range(1500)]
        assert await stores.runs.find_existing([kept.id, deleted.id, *others]) == {kept.id}
        assert await stores.runs.find_existing([]) == frozenset()

    async def test_runs_are_counted_by_phase(self, stores: ClusterStores) -> None:
        assert await stores.runs.count_by_phase() == {}
        runs = [await submit_run(stores) for _ in range(3)]
        await stores.cluster.request_stop(runs[0].id, now=time_at(1))
        assert await stores.runs.count_by_phase() == {RunPhase.QUEUED: 2, RunPhase.CANCELLED: 1}


class RecordCases:
    """Records of a live run."""

    async def test_values_are_merged_by_name(self, stores: ClusterStores) -> None:
        params = {"lr": 0.1, "epochs": 3, "data": "{dataset:mnist}/train"}
        run = (await submit_run(stores, params=params)).id
        await stores.runs.record_params(run, {"lr": 0.5, "new": "x", "data": "/trees/1/train"})
        await stores.runs.record_summary(run, {"a": 1.0, "b": math.inf})
        await stores.runs.record_summary(run, {"b": -math.inf, "c": 3.0})
        stored = await stores.runs.get(run)
        assert stored.params == {**params, "lr": 0.5, "new": "x"}
        assert stored.spec.params == params
        assert stored.summary == {"a": 1.0, "b": -math.inf, "c": 3.0}

    async def test_number_of_values_is_limited_and_existing_ones_update(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores, params={"lr": 0.1})).id
        for part in range(3):
            values = {f"m{part}-{number}": float(number) for number in range(MAX_RUN_VALUES // 2)}
            await stores.runs.record_summary(run, values)
            await stores.runs.record_metrics(run, {name: (part, value) for name, value in values.items()})
            await stores.runs.record_params(
                run, {f"p{part}-{number}": "x" * 10_000 for number in range(MAX_RUN_VALUE_BYTES // 20_000)}
            )
        await stores.runs.record_summary(run, {"m0-1": 7.0, "late": 1.0})
        await stores.runs.record_metrics(run, {"m0-1": (9, 7.0), "late": (9, 1.0)})
        await stores.runs.record_params(run, {"lr": 0.5, "late": "x" * 10_000})
        stored, latest = await stores.runs.get(run), (await stores.runs.latest_metrics([run]))[run]
        assert len(stored.summary) == len(latest) == MAX_RUN_VALUES
        assert (stored.summary["m0-1"], latest["m0-1"], stored.params["lr"]) == (7.0, (9, 7.0), 0.5)
        assert not {"late"} & (stored.summary.keys() | latest.keys() | stored.params.keys())
        await stores.runs.record_metrics(run, {"late": (9, 1.0)}, replace_all=True)
        assert (await stores.runs.latest_metrics([run]))[run] == {"late": (9, 1.0)}

    async def test_machine_environment_is_replaced(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        assert await stores.runs.machine_env(run) == await stores.runs.machine_env(MISSING_RUN) == {}
        await stores.runs.record_machine_env(run, {"PATH": "/bin", "TZ": "UTC"})
        await stores.runs.record_machine_env(run, {"PATH": "/usr/bin", "HF_HOME": None})
        assert await stores.runs.machine_env(run) == {"PATH": "/usr/bin", "HF_HOME": None}

    async def test_extremes_are_known_until_their_metric_changes(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores, datasets=(DatasetRef("mnist", 1),))).id
        low, high, nan = ((3, -1.0), (7, math.inf)), ((0, 1.0), (0, 1.0)), (9, math.nan)

        async def known() -> Mapping[str, object]:
            [summary] = await stores.runs.list_summaries("mnist", limit=9, latest=True, extremes=True)
            return summary.extremes

        await stores.runs.record_metrics(run, {"a": (9, 2.0), "b": (0, 1.0)}, extremes={"a": low, "b": high})
        assert await known() == {"a": low, "b": high}
        await stores.runs.record_metrics(run, {"a": nan})
        assert await known() == {"b": high}
        await stores.runs.record_extremes(run, "a", low, latest=(9, 2.0))  # of an older curve
        await stores.runs.record_extremes(MISSING_RUN, "a", low, latest=nan)
        assert await known() == {"b": high}
        await stores.runs.record_extremes(run, "a", low, latest=nan)
        assert await known() == {"a": low, "b": high}
        await stores.runs.record_metrics(run, {"c": (0, 1.0)}, replace_all=True)
        assert await known() == {}
        [plain] = await stores.runs.list_summaries("mnist", limit=9, latest=True)
        assert (plain.latest, plain.extremes) == ({"c": (0, 1.0)}, {})

    async def test_tags_of_scripts_never_replace_those_of_users(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores, tags={"team": "a"})).id
        assert await stores.runs.script_tags(run) == ScriptTags()
        await stores.runs.record_tags(run, ScriptTags({"team": "b", "kind": "x", "old": "y"}, "first"))
        await stores.runs.record_tags(run, ScriptTags({"kind": "z", "old": None}, "second"))
        stored = await stores.runs.get(run)
        assert (stored.spec.tags, stored.note) == ({"team": "a", "kind": "z"}, "second")
        assert await stores.runs.script_tags(run) == ScriptTags({"kind": "z"}, "second")
        found = await stores.runs.list(RunFilter(tags={"kind": "z"}, text="kind=z"))
        assert [each.id for each in found] == [run]
        assert await stores.runs.list(RunFilter(tags={"old": "y"})) == []
        with pytest.raises(NotFound):
            await stores.runs.record_tags(MISSING_RUN, ScriptTags({"a": "b"}))

    async def test_latest_metrics_are_merged_by_name(self, stores: ClusterStores) -> None:
        first, second = (await submit_run(stores)).id, (await submit_run(stores)).id
        await stores.runs.record_metrics(first, {"loss": (1, 0.5), "acc": (1, 0.1)})
        await stores.runs.record_metrics(first, {"gone": (7, 0.0)})
        await stores.runs.record_metrics(first, {"acc": (1, 0.1)}, replace_all=True)
        await stores.runs.record_metrics(first, {"loss": (2, math.nan)})
        metrics = await stores.runs.latest_metrics([first, second])
        assert metrics[second] == {}
        assert (set(metrics[first]), metrics[first]["acc"]) == ({"acc", "loss"}, (1, 0.1))
        step, value = metrics[first]["loss"]
        assert step == 2
        assert math.isnan(value)

    async def test_concurrent_records_of_run_are_all_stored(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        await asyncio.gather(
            *(stores.runs.record_summary(run, {f"m{number}": float(number)}) for number in range(30))
        )
        assert (await stores.runs.get(run)).summary == {f"m{number}": float(number) for number in range(30)}

    async def test_artifact_and_lock_are_stored(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        await stores.runs.record_artifact(run, make_digest("made"))
        await stores.runs.record_run_folder(run, make_digest("kept"), 7, attempt=attempt_id(run, 1))
        await stores.runs.record_lock(run, make_digest("lock"), {"torch": "2.0"})
        stored = await stores.runs.get(run)
        assert stored.artifact == make_digest("made")
        assert (stored.run_folder, stored.run_folder_bytes) == (make_digest("kept"), 7)
        fork = (await submit_run(stores, initial_folder=make_digest("kept"))).id
        assert (await stores.runs.get(fork)).run_folder == make_digest("kept")
        listed = await stores.runs.list(RunFilter(run_folder=make_digest("kept")))
        assert [found.id for found in listed] == [fork, run]
        assert not await stores.runs.list(RunFilter(run_folder=make_digest("made")))
        child = (await submit_run(stores, forked_from=fork)).id
        await submit_run(stores, forked_from=child)
        found = await stores.runs.list(RunFilter(forked_from=frozenset({fork, run})))
        assert [each.id for each in found] == [child]
        assert stored.spec.environment == Environment(lock=make_digest("lock"), packages={"torch": "2.0"})
        await stores.runs.record_packages(run, {"torch": "2.1", "python": "3.11.4"})
        environment = (await stores.runs.get(run)).spec.environment
        assert environment.packages == {"torch": "2.1", "python": "3.11.4"}
        assert environment.lock == make_digest("lock")

    async def test_unstored_messages_are_unique_and_limited(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        assert (await stores.runs.get(run)).unstored == ()
        await stores.runs.record_unstored(run, ["step 5", "step 6"])
        await stores.runs.record_unstored(run, ["step 6", *(f"step {step}" for step in range(7, 100))])
        assert (await stores.runs.get(run)).unstored == tuple(
            f"step {step}" for step in range(5, 5 + MAX_UNSTORED_MESSAGES)
        )

    async def test_checkpoints_are_stored_in_order_of_saving(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        for step in (10, 5, 20):  # in the order of saving, not of steps
            await stores.runs.record_checkpoint(checkpoint(run, step))
        await stores.runs.record_checkpoint(replace(checkpoint(run, 5), size_bytes=99))  # sent again
        await stores.runs.set_checkpoint_kept(run, 5, True)
        await stores.runs.record_checkpoint(replace(checkpoint(run, 30), best_by="max:acc"))
        saved = [
            checkpoint(run, 10),
            replace(checkpoint(run, 5), kept=True),
            checkpoint(run, 20),
            replace(checkpoint(run, 30), best_by="max:acc"),
        ]
        assert await stores.runs.checkpoints(run) == saved
        await stores.runs.delete_checkpoints(run, [10, 99])
        assert await stores.runs.checkpoints(run) == saved[1:]
        with pytest.raises(NotFound):
            await stores.runs.set_checkpoint_kept(run, 10, True)

    async def test_checkpoint_of_the_same_step_replaces_the_earlier_one(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        again = replace(checkpoint(run, 5), manifest=make_digest("again"), metrics={"acc": 0.5})
        for saved in (checkpoint(run, 5), checkpoint(run, 6)):
            await stores.runs.record_checkpoint(saved)
        await stores.runs.set_checkpoint_kept(run, 5, True)
        assert await stores.runs.mark_damaged(run, 5, "a blob is damaged", now=time_at(5))
        await stores.runs.record_checkpoint(again)
        # it is the last one that was saved, intact, and stays kept
        assert await stores.runs.checkpoints(run) == [checkpoint(run, 6), replace(again, kept=True)]
        assert await stores.runs.checkpoints(run, damaged=True) == await stores.runs.checkpoints(run)
        marked = replace(checkpoint(run, 6), created_at=time_at(7), metrics={}, kept=True)  # the same content
        for saved in (marked, checkpoint(run, 6)):
            await stores.runs.record_checkpoint(saved)
        assert (await stores.runs.checkpoints(run))[-1] == marked

    async def test_own_checkpoints_of_a_script_are_apart(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        own = replace(checkpoint(run, 20), path="work/ckpt.pt")
        newer = replace(own, manifest=make_digest("newer"))
        for saved in (checkpoint(run, 20), own, newer, newer):
            await stores.runs.record_checkpoint(saved)
        assert await stores.runs.checkpoints(run) == [checkpoint(run, 20)]
        assert await stores.runs.checkpoints(run, own=True) == [checkpoint(run, 20), newer]
        assert await stores.runs.checkpoints_of([run]) == {run: [checkpoint(run, 20)]}
        assert await stores.runs.mark_damaged(run, 20, "a blob is damaged", now=time_at(5))
        assert await stores.runs.checkpoints(run, own=True) == [newer]
        await stores.runs.delete_checkpoints(run, [20], own=True)
        assert [saved.path for saved in await stores.runs.checkpoints(run, damaged=True, own=True)] == [""]

    async def test_damaged_checkpoint_is_unused_but_listed(self, stores: ClusterStores) -> None:
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
        assert await stores.runs.checkpoints_of([run]) == {run: [checkpoint(run, 10)]}
        assert await stores.runs.events(run) == [
            RunEvent(time_at(5), RunEventKind.DAMAGED, "a blob is damaged")
        ]
        with pytest.raises(NotFound):
            await stores.runs.mark_damaged(MISSING_RUN, 1, "gone", now=time_at(6))

    async def test_checkpoints_of_several_runs(self, stores: ClusterStores) -> None:
        first, second, without_checkpoint = [(await submit_run(stores)).id for _ in range(3)]
        for run, step in ((first, 10), (second, 7), (first, 5)):
            await stores.runs.record_checkpoint(checkpoint(run, step))
        assert await stores.runs.checkpoints_of([first, second, without_checkpoint, MISSING_RUN]) == {
            first: [checkpoint(first, 10), checkpoint(first, 5)],
            second: [checkpoint(second, 7)],
        }
        assert await stores.runs.checkpoints_of([]) == {}

    async def test_record_of_unknown_run_is_rejected(self, stores: ClusterStores) -> None:
        for record in (
            stores.runs.record_params(MISSING_RUN, {"a": 1}),
            stores.runs.record_machine_env(MISSING_RUN, {}),
            stores.runs.record_summary(MISSING_RUN, {"a": 1.0}),
            stores.runs.record_metrics(MISSING_RUN, {"a": (1, 1.0)}),
            stores.runs.record_artifact(MISSING_RUN, make_digest("x")),
            stores.runs.record_unstored(MISSING_RUN, ["step 5"]),
            stores.runs.record_lock(MISSING_RUN, make_digest("x"), {}),
            stores.runs.record_packages(MISSING_RUN, {}),
            stores.runs.record_checkpoint(checkpoint(MISSING_RUN, 1)),
        ):
            with pytest.raises(NotFound):
                await record


class EndCases:
    """Offline runs, and deletion."""

    async def test_offline_run_is_never_queued(self, stores: ClusterStores) -> None:
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
        stored = await stores.runs.get(run.id)
        assert (stored.phase, stored.exit, stored.started_at, stored.ended_at) == (
            RunPhase.SUCCEEDED,
            SUCCESS_EXIT,
            time_at(0),
            time_at(9),
        )
        assert [attempt.id for attempt in await stores.runs.attempts(run.id)] == [attempt_id(run.id, 1)]

    async def test_syncing_run_is_not_stopped_or_lost_and_can_be_deleted(self, stores: ClusterStores) -> None:
        (run,) = await stores.runs.create([new_run(offline=True)], now=time_at(0))
        with pytest.raises(Conflict, match="being synced"):
            await stores.cluster.request_stop(run.id, now=time_at(1))
        await stores.cluster.request_preempt(run.id, "room", now=time_at(1))
        await record_observation(stores, nodes=[make_node()])
        assert await stores.runs.get(run.id) == run
        assert [listed.id for listed in await stores.runs.list(RunFilter(offline=True))] == [run.id]
        assert await stores.runs.list(RunFilter(offline=False)) == []
        await stores.runs.delete(run.id)
        with pytest.raises(NotFound):
            await stores.runs.get(run.id)

    async def test_only_offline_run_can_be_finished_offline(self, stores: ClusterStores) -> None:
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

    async def test_delete_run(self, stores: ClusterStores) -> None:
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
        assert (await submit_run(stores)).name.number == 2  # its number is never reused
