"""Every operation of the OpenAPI description, tried with data that fit it and data that do not, in process.

A long hunt: make explore EXPLORE_ARGS="--round 50 tests/server/test_schemathesis.py"
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import schemathesis
import schemathesis.core.jsonschema
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from hopyard.server.export_openapi import openapi_document
from tests.exploration import ROUND, scaled_size, seeded
from tests.server.api_server import TOKEN, api_server

EXAMPLES = scaled_size(2)
# A valid type may still be an impossible value (two roles of one name, a gang larger than every node):
# that gives 400. The document does not describe the content of bytes: invalid bytes give 422.
JSON_STATUSES = ["2xx", "400", "401", "403", "404", "409"]
BYTES_STATUSES = [*JSON_STATUSES, "422"]
DESCRIPTION = openapi_document()
OPERATIONS = [(path, method.upper()) for path, methods in DESCRIPTION["paths"].items() for method in methods]
EVENTS_PATH = "/api/v1/events"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class OtherLoopApp:
    """Calls an ASGI application, which runs in the event loop of another thread, from any loop."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._app, self._loop = app, loop

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        caller_loop = asyncio.get_running_loop()
        is_endless, is_read = scope["path"] == EVENTS_PATH, False
        started = asyncio.Event()  # of the response

        async def receive_in_loop() -> Any:
            nonlocal is_read
            if is_endless and is_read:  # the client of a stream without an end leaves once it begins
                await started.wait()
                return {"type": "http.disconnect"}
            is_read = True
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(receive(), caller_loop))

        async def send_in_loop(message: Any) -> None:
            if message.get("body"):
                started.set()
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(send(message), caller_loop))

        await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._app(scope, receive_in_loop, send_in_loop), self._loop)
        )


@pytest.fixture(scope="module")
def served_schemas(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[dict[bool, Any], dict[str, str]]]:
    """Schemas (for bytes and for JSON) of a server with one ended run and one dataset, and the path
    parameters that name them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def prepare() -> dict[str, str]:
        await api.push_dataset("mnist")
        run = await api.start_run(datasets=[{"name": "mnist"}])
        saved = await api.put_tree({"w": b"1"})
        await api.request(
            "POST", f"/attempts/{run['id']}.1/checkpoints", {"rank": 0, "step": 7, "manifest": saved}
        )
        await api.finish(
            run,
            segments=[("stdout", 0, b"hi\n"), ("events", 0, b'{"kind":"summary","values":{"acc":0.5}}\n')],
        )
        known = {
            "id": run["id"],
            "attempt": f"{run['id']}.1",
            "rank": "0",
            "stream": "stdout",
            "step": "7",
            "digest": saved,
        }
        return known | {
            "name": "mnist",
            "version": "newest",
            "user": "alice",
            "project": "p",
            "number": "1",
            "queue": "default",
            "node": "box",
        }

    closing = AsyncExitStack()
    try:
        api = call(closing.enter_async_context(api_server(tmp_path_factory.mktemp("api"))))
        known = call(prepare())
        yield (
            {
                raw: schema_of(OtherLoopApp(api.app, loop), BYTES_STATUSES if raw else JSON_STATUSES)
                for raw in (True, False)
            },
            known,
        )
    finally:
        call(closing.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def schema_of(app: Any, accepted: list[str]) -> Any:
    config = SchemathesisConfig.from_dict(
        {"checks": {"positive_data_acceptance": {"expected-statuses": accepted}}}
    )
    schema = schemathesis.openapi.from_dict(DESCRIPTION, config=config)
    schema.app = app
    return schema


@pytest.fixture(autouse=True)
def _drop_validators() -> Iterator[None]:
    """Drops the compiled validators of Schemathesis.

    It keeps one per schema, hundreds of megabytes for an operation with a large body; the process would grow
    to 2 GB.
    """
    yield
    for name in ("validator_cache", "_seeded_validator_cache"):
        getattr(schemathesis.core.jsonschema, name).clear()


@seeded
@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fitting", "unfitting"]
)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_api_matches_its_openapi_document(
    served_schemas: tuple[dict[bool, Any], dict[str, str]], path: str, method: str, mode: GenerationMode
) -> None:
    schemas, parameters = served_schemas
    raw = "application/octet-stream" in DESCRIPTION["paths"][path][method.lower()].get("requestBody", {}).get(
        "content", {}
    )
    operation = schemas[raw][path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=not ROUND,
    )
    def attempt(case: schemathesis.Case) -> None:
        # In half of the cases the path names existing items (except for DELETE: other cases need them).
        if (
            mode is GenerationMode.POSITIVE
            and method != "DELETE"
            and case.path_parameters
            and len(repr(case.path_parameters)) % 2
        ):
            case.path_parameters = {
                part: parameters.get(part, given) for part, given in case.path_parameters.items()
            }
        case.call_and_validate(headers=HEADERS)

    try:
        attempt()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # nothing about it can be wrong
