"""Content of users can never act as a page of the server: each response of the API, opened by a browser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from hopyard.domain.media import JSON_TYPE, TEXT_TYPE, MediaKind, MediaRecord, encode_record
from hopyard.domain.stream_limits import MEDIA_DATA_STREAM, MEDIA_STREAM
from hopyard.server.export_openapi import openapi_document
from tests.server.api_server import API, TOKEN, ApiServer, run_scenario
from tests.server.routes.test_session import browser_of
from tests.server.test_stream_followers import listening_port
from tests.server.web.hostile_content import FILES, LOGS, SCRIPT, TEXTS

# as a browser opens an address that the user typed or pasted
NAVIGATION = {
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Sec-Fetch-Site": "none",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}
ENDLESS = {f"{API}/runs/{{id}}/follow", f"{API}/events"}
QUERIES = {
    f"{API}/runs/resolve": {"ref": SCRIPT},
    f"{API}/proof": {"nonce": "0" * 64},
    f"{API}/runs/{{id}}/file": {"path": "<script>"},
}


def media_streams() -> list[tuple[str, int, bytes]]:
    """Media with pages as contents, with each type that a browser could show as one."""
    types = ["image/png", "text/html", "image/svg+xml", TEXT_TYPE, JSON_TYPE]
    lines = data = b""
    for index, (type_, content) in enumerate(zip(types, FILES.values(), strict=False)):
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        lines += encode_record(
            MediaRecord(
                TEXTS[index],
                MediaKind.IMAGE,
                type_,
                index,
                0,
                len(data),
                len(content),
                digest,
                1.0,
                TEXTS[index],
            )
        )
        data += content
    return [(MEDIA_STREAM, 0, lines), (MEDIA_DATA_STREAM, 0, data)]


async def fill(api: ApiServer) -> dict[str, str]:
    """Stores hostile content wherever users can, and returns the parameters of paths that name it."""
    tags = {text: text for text in TEXTS if text.isprintable()}  # one visible line: others are refused
    await api.push_dataset("mnist", dict(FILES))
    run = await api.start_run(tags=tags, datasets=[{"name": "mnist"}])
    await api.request("PATCH", f"/runs/{run['id']}", {"note": "\n".join(TEXTS)})
    await api.request("POST", f"/runs/{run['id']}/alerts", {"text": TEXTS[0], "title": TEXTS[3]})
    view = {"view": {text: text for text in TEXTS}, "shared": True}
    await api.request("PUT", "/views/mine", view)
    blocks = [{"type": "text", "text": text} for text in TEXTS]
    report = await api.request("POST", "/reports", {"title": TEXTS[0], "blocks": blocks})
    streams = media_streams()
    await api.sync(run, [("stdout", 0, b"\n".join(LOGS)), *streams])
    manifest = await api.put_tree(dict(FILES))
    checkpoint = {"rank": 0, "step": 1, "manifest": manifest}
    await api.request("POST", f"/attempts/{run['id']}.1/checkpoints", checkpoint)
    listed = (await api.request("GET", f"/runs/{run['id']}/media"))["media"]
    assert [item["type"] for item in listed].count("image/png") == 1, "media that claim to be a page are gone"
    assert not {item["type"] for item in listed} & {"text/html", "image/svg+xml"}
    return {
        "id": run["id"],
        "attempt": f"{run['id']}.1",
        "rank": "0",
        "stream": "stdout",
        "item": next(item["id"] for item in listed if item["type"] == "image/png"),
        "name": "mnist",
        "view": "mine",
        "report": report["id"],
        "trial": "0",
        "version": "1",
        "step": "1",
        "number": "1",
        "user": "alice",
        "project": "p",
        "queue": "default",
        "node": "box",
        "reservation": "none",
    }


def addresses(names: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in openapi_document()["paths"].items():
        if "get" in methods and path not in ENDLESS:
            yield path.format(**names), dict(QUERIES.get(path, {}))
    yield f"{API}/series", {"run": names["id"], "name": "*"}
    yield f"{API}/runs/counts", {"by": "note"}
    for text in TEXTS[::3]:
        yield f"{API}/runs", {"text": text}
        yield f"{API}/runs", {text: "1"}
        yield f"{API}/runs/resolve", {"ref": text}
        yield f"{API}/{quote(text, safe='')}", {}


def test_no_response_of_the_api_can_act_as_a_page(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        names = await fill(api)
        async with (
            listening_port(api) as port,
            browser_of(api) as login,
            httpx.AsyncClient(base_url=f"http://localhost:{port}") as http,
        ):
            await login.log_in(token=TOKEN)
            cookie = {"Cookie": f"hopyard_session_{port}={login.http.cookies['hopyard_session']}"}
            found, statuses = b"", set[int]()
            for path, query in addresses(names):
                response = await http.get(path, params=query, headers=NAVIGATION | cookie)
                headers, where = response.headers, (path, query, response.status_code)
                found += response.content
                statuses.add(response.status_code)
                assert response.status_code not in (401, 500), where
                policy = headers["content-security-policy"].split("; ")
                assert policy[:2] == ["sandbox", "default-src 'none'"], where
                assert headers.get_list("x-content-type-options") == ["nosniff"], where
                assert headers["cross-origin-resource-policy"] == "same-origin", where
                kind = headers.get("content-type", "").partition(";")[0]
                if path.endswith("/export"):  # a page to keep: saved, never shown
                    assert headers["content-disposition"].startswith("attachment"), where
                    continue
                assert kind not in ("text/html", "image/svg+xml", "text/xml", "application/xml", ""), where
                assert "access-control-allow-origin" not in headers, where
            assert {200, 404, 422} <= statuses
            for content in (*LOGS[:3], *(json.dumps(text).encode()[1:-1] for text in TEXTS[:3])):
                assert content in found, "the content was stored and returned"

    run_scenario(tmp_path, scenario)
