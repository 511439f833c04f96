"""The study's connection to its server: retried requests, and errors that are raised at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from hopyard.api_client.client import Client
from hopyard.config.home import Home
from hopyard.errors import (
    AuthError,
    Conflict,
    Forbidden,
    HopyardError,
    IntegrityError,
    NotFound,
    ServerFault,
    ServerUnavailable,
    SpecError,
)
from hopyard.studies.server_api import StudyApi
from hopyard.testing.home_server import HomeServer


class Answers(HomeServer):
    """Returns the given answers in order, and records the token of each request."""

    def __init__(self, home: Home) -> None:
        super().__init__(home, _AnswerHandler)
        self.home = home
        self.answers: list[tuple[int, dict[str, object]]] = []
        self.tokens: list[str] = []


class _AnswerHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Answers)
        self.server.tokens.append(self.headers["Authorization"].removeprefix("Bearer "))
        status, body = self.server.answers.pop(0)
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Answers]:
    with Answers(Home(tmp_path / "home")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def error(status: int, code: str) -> tuple[int, dict[str, object]]:
    return status, {"error": {"code": code, "message": f"{code}!", "hints": []}}


def get_x(client: Client) -> Any:
    return client.get("/x")


def api_for(
    answers: Answers,
    folder: Path,
    *,
    home: Path | None = None,
    messages: list[str] | None = None,
    stop: list[bool] | None = None,
) -> StudyApi:
    spec = {
        "launch": {"server_url": "http://127.0.0.1:9", "token": "first"},
        "node": {"home": str(home or answers.home.root)},
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    return StudyApi(
        folder,
        is_stopping=lambda: bool(stop and stop.pop(0)),
        log_message=(messages if messages is not None else []).append,
    )


def test_responses_and_errors_are_returned(answers: Answers, tmp_path: Path) -> None:
    api = api_for(answers, tmp_path)
    answers.answers = [
        (200, {"a": 1}),
        error(409, "conflict"),
        error(404, "not_found"),
        error(404, "not_found"),
    ]
    assert api.call(get_x) == {"a": 1}
    with pytest.raises(Conflict):
        api.call(get_x)
    with pytest.raises(NotFound):
        api.call(get_x)
    assert api.find(get_x) is None
    api.close()


@pytest.mark.parametrize(
    ("refusal", "kind", "times"),
    [
        (error(401, "not_authorised"), AuthError, 1),
        (error(403, "forbidden"), Forbidden, 1),
        (error(400, "bad_spec"), SpecError, 1),
        (error(422, "damaged"), IntegrityError, 1),
        (error(500, "error"), ServerFault, 6),
    ],
)
def test_errors_other_than_not_found_are_raised(
    answers: Answers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: tuple[int, dict[str, object]],
    kind: type[HopyardError],
    times: int,
) -> None:
    monkeypatch.setattr("hopyard.studies.server_api._RETRY_DELAYS_S", (0.0, 0.0))
    api = api_for(answers, tmp_path)
    answers.answers = [refusal] * times
    with pytest.raises(kind) as refused:
        api.find(get_x)
    assert type(refused.value) is kind
    assert answers.answers == []
    api.close()


def test_full_or_failing_server_is_retried(answers: Answers, tmp_path: Path) -> None:
    messages: list[str] = []
    api = api_for(answers, tmp_path, messages=messages)
    answers.answers = [error(507, "storage_full")] * 6 + [error(500, "error")] * 2 + [(200, {"a": 1})]
    assert api.call(get_x) == {"a": 1}
    assert messages == ["the study cannot reach its server, and retries: storage_full!"]
    api.close()


def test_permanently_failing_server_raises_error(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopyard.studies.server_api._RETRY_DELAYS_S", (0.0, 0.0))
    api = api_for(answers, tmp_path)
    answers.answers = [error(500, "error")] * 6
    with pytest.raises(HopyardError, match="error!"):
        api.call(get_x)
    assert answers.answers == []
    api.close()


def test_renewed_token_is_used(answers: Answers, tmp_path: Path) -> None:
    api = api_for(answers, tmp_path)
    answers.answers = [(200, {"a": 1}), error(401, "not_authorised"), (200, {"a": 2})]
    assert api.call(get_x) == {"a": 1}
    (tmp_path / "token").write_text("second\n")
    assert api.call(get_x) == {"a": 2}
    assert answers.tokens == ["first", "first", "second"]
    api.close()


def test_stopping_study_does_not_wait_for_server(answers: Answers, tmp_path: Path) -> None:
    api = api_for(answers, tmp_path, home=tmp_path / "empty", stop=[False, True])
    with pytest.raises(ServerUnavailable):
        api.call(get_x)
    api.close()


def test_folder_without_replica_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"spec\.json"):
        StudyApi(tmp_path, is_stopping=lambda: False, log_message=print)
