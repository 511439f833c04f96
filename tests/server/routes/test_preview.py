"""When a run would start, without submitting it."""

from __future__ import annotations

from pathlib import Path

from tests.server.api_server import ApiServer, role, run_scenario


def test_preview_is_what_a_submission_then_gets_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async def preview(**spec: object) -> dict[str, object]:
            body = {"spec": {"project": "p", "roles": [role()], **spec}}
            result: dict[str, object] = await api.request("POST", "/runs/preview", body)
            return result

        free = await preview(roles=[role(gpus=2)], code="a" * 64)  # its blobs need not be there
        assert (free["starts"], free["nodes"], free["queue"]) == ("now", ["box"], "default")
        assert free["sentence"] == "starts now on box"
        blocking = await api.start_run(roles=[role(gpus=1)], time_limit_s=3600.0)
        later = await preview(roles=[role(gpus=2)], time_limit_s=600.0)
        assert (later["starts"], later["reason"], later["position"]) == ("later", "no-capacity", 1)
        assert "starts in" in str(later["sentence"]) and later["detail"]
        assert [each["id"] for each in later["blocked_by"]] == [blocking["id"]]  # type: ignore[attr-defined]
        assert "with 1 GPU: now" in [line["text"] for line in later["what_if"]]  # type: ignore[attr-defined]
        never = await preview(roles=[role(gpus=9)])
        assert never["starts"] == "never" and "9" in str(never["detail"]) and never["hints"]
        runs = (await api.request("GET", "/runs"))["runs"]
        assert [run["id"] for run in runs] == [blocking["id"]]
        records = (await api.request("GET", "/audit"))["records"]
        assert {record["action"] for record in records} == {"run.submit"}

    run_scenario(tmp_path, scenario)


def test_preview_refuses_what_a_submission_refuses(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for spec, status, text in (
            ({"priority": 900}, 422, "priority"),
            ({"queue": "nowhere"}, 400, "nowhere"),
            ({"datasets": [{"name": "nothing"}]}, 404, "nothing"),
            ({"secrets": ["NONE"]}, 404, "NONE"),
        ):
            body = {"spec": {"project": "p", "roles": [role()], **spec}}
            response = await api.send("POST", "/runs/preview", body)
            submitted = await api.send("POST", "/runs", body)
            assert response.status_code == submitted.status_code, response.text
            assert response.status_code == status or status == 422
            assert text in response.json()["error"]["message"]
        run = await api.start_run()
        body = {"spec": {"project": "p", "roles": [role()]}}
        await api.request("POST", "/runs/preview", body, token=api.run_token(run), status=403)

    run_scenario(tmp_path, scenario)
