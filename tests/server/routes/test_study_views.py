"""The state, trials and units of a study, as its journal describes them so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopyard.studies.journal import encode_record
from tests.server.api_server import ApiServer, run_scenario
from tests.server.routes.test_studies import STUDY
from tests.studies.view.test_study_view import hop_record, proposal_record, report_record

SPEC = {"kind": "study", "spec": {"name": "s", "metric": "acc", "goal": "max"}, "attempt": "a"}


def journal(*records: dict[str, Any], at: float = 100.0) -> bytes:
    """Returns the bytes of a journal, with a second between two records."""
    return b"\n" + b"".join(
        encode_record({**record, "t": at + number}) for number, record in enumerate(records)
    )


async def grow(api: ApiServer, study: Any, offset: int, data: bytes, *, attempt: int = 1) -> int:
    await api.sync(study, [("journal", offset, data)], attempt=attempt)
    return offset + len(data)


def test_state_and_trials_follow_the_journal(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        path = f"/runs/{study['id']}/study"
        empty = await api.request("GET", path)
        assert (empty["metric"], empty["searcher"], empty["trial_limit"], empty["records"]) == (
            "acc",
            "random",
            3,
            0,
        )
        first = journal(
            SPEC,
            proposal_record("0", lr=0.1, budget=1),
            proposal_record("1", lr=0.2, budget=1),
            report_record("0", 1, 0.5, "pause"),
            report_record("1", 1, 0.4, "stop"),
            proposal_record("0", lr=0.1, budget=3, start_from="0"),
        )
        offset = await grow(api, study, 0, first[:-10])  # the last record is not yet complete
        assert (await api.request("GET", path))["records"] == 5
        offset = await grow(api, study, offset, first[-10:])
        state = await api.request("GET", path)
        assert state["counts"] == {
            "training": 1, "paused": 0, "completed": 0, "stopped": 1, "failed": 0,
        }  # fmt: skip
        assert state["best"] == {"trial": "0", "value": 0.5, "step": 1, "params": {"lr": 0.1}}
        assert state["improvements"] == [
            {"at": 103.0, "trial": "0", "step": 1, "value": 0.5, "trials": 2, "reports": 1}
        ]
        page = await api.request("GET", f"{path}/trials")
        rungs = [[(rung["budget"], rung["outcome"]) for rung in trial["rungs"]] for trial in page["trials"]]
        assert rungs == [[(1, "promoted")], [(1, "stopped")]]
        assert page["trials"][0]["budget"] == 3
        assert (page["trials"][1]["began_at"], page["trials"][1]["reported_at"]) == (102.0, 104.0)

        await grow(api, study, offset, journal(report_record("0", 3, 0.7), at=200.0))
        changed = await api.request("GET", f"{path}/trials", since=page["records"])
        assert [trial["trial"] for trial in changed["trials"]] == ["0"]
        assert [rung["outcome"] for rung in changed["trials"][0]["rungs"]] == ["promoted", "completed"]
        full = await api.request("GET", f"{path}/trials/0")
        assert (full["steps"], full["values"]) == ([1, 3], [0.5, 0.7])
        assert (full["metrics"], full["schedule"][0]["params"]) == ({"acc": 0.7}, {"lr": 0.1})
        missing = await api.request("GET", f"{path}/trials/7", status=404)
        assert missing["error"]["hints"] == ["it has 2 trials: 0 to 1"]

    run_scenario(tmp_path, scenario)


def test_pages_of_trials_and_units_contain_each_once(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        records = [
            SPEC,
            *(proposal_record(str(number), lr=0.5) for number in range(5)),
            *(hop_record(number, str(number), str(number % 2), at=number) for number in range(5)),
        ]
        await grow(api, study, 0, journal(*records))
        trials, place = [], 0
        while place is not None:
            page = await api.request("GET", f"/runs/{study['id']}/study/trials", limit=2, after=place)
            trials += [trial["trial"] for trial in page["trials"]]
            place = page["next"]
        assert trials == ["0", "1", "2", "3", "4"]
        units, place = [], 0
        while place is not None:
            page = await api.request("GET", f"/runs/{study['id']}/study/units", limit=2, after=place)
            units += [
                (unit["trial"], unit["worker"], unit["began_at"], unit["kind"]) for unit in page["units"]
            ]
            place = page["next"]
        assert units == [(str(n), str(n % 2), float(n), "train") for n in range(5)]
        after = await api.request("GET", f"/runs/{study['id']}/study/units", after=5)
        assert (after["units"], after["total"], after["next"]) == ([], 5, None)

    run_scenario(tmp_path, scenario)


def test_journal_of_a_later_attempt_follows(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        path = f"/runs/{study['id']}/study"
        await grow(api, study, 0, journal(SPEC, proposal_record("0", lr=0.1)) + b'{"kind":"cut')
        assert (await api.request("GET", path))["records"] == 2
        await api.sync(
            study, [], phase="exited", exit={"kind": "lost", "code": 1, "reason": "lost"}, final=True
        )
        await api.wait_until(lambda: f"{study['id']}.2" in api.engine.launches)
        again = journal({**SPEC, "attempt": "b"}, proposal_record("1", lr=0.2))
        await grow(api, study, 0, again, attempt=2)
        state = await api.request("GET", path)
        assert (state["records"], state["resumed"], sum(state["counts"].values())) == (4, 1, 2)

    run_scenario(tmp_path, scenario)


def test_records_of_another_form_are_counted_and_left_out(tmp_path: Path) -> None:
    hostile = [
        SPEC,
        {"kind": "asked", "answer": {"trial": "0", "params": {"lr": "\ud800", "n": 2**80}, "budget": 2**90}},
        {"kind": "asked", "answer": {"trial": "1"}},
        {"kind": "told", "report": {"trial": "0", "step": "x", "value": "y"}},
        {"kind": "told", "report": 7},
        {"kind": "study", "spec": 3},
        {"kind": "hop", "n": [], "workers": 3},
        {"kind": "worker", "worker": "<b>", "event": "lost", "detail": "\ud800"},
        {"kind": "unknown"},
    ]

    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        path = f"/runs/{study['id']}/study"
        await grow(api, study, 0, journal(*hostile))
        state = await api.request("GET", path)
        assert (state["records"], state["skipped"], state["metric"]) == (9, 5, "acc")
        assert state["workers"] == [{"worker": "<b>", "event": "lost", "detail": "?"}]
        trials = (await api.request("GET", f"{path}/trials"))["trials"]
        assert trials[0]["params"] == {"lr": "?", "n": float(2**53)}
        assert trials[0]["budget"] == 2**53

    run_scenario(tmp_path, scenario)


def test_only_studies_have_a_state(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.submit()
        refused = await api.request("GET", f"/runs/{run['id']}/study", status=400)
        assert refused["error"]["message"].endswith("is a run, not a study")

    run_scenario(tmp_path, scenario)
