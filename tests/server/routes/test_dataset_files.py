"""The files of datasets, their origin, and what their deletion frees, in process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, Manifest
from tests.datasets.folder_transport import corrupt_blob, digest_of
from tests.server.api_server import ApiServer, run_scenario
from tests.server.test_pages import pages

FILES = "/datasets/d/versions/1/files"
FILE = "/api/v1/datasets/d/versions/1/file"


async def read(api: ApiServer, path: str, **headers: str) -> Any:
    token = {"Authorization": f"Bearer {'hop_' + 't' * 43}"}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await api.http.get(FILE, params={"path": path}, headers={**token, **names})


def test_files_are_listed_by_folder_and_found_by_name(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        tree = {f"train/{number % 3}/{number}.png": b"x" * number for number in range(1, 10)}
        await api.push_dataset("d", {**tree, "README.md": b"hi", "train.csv": b"a,b"})
        top = await api.request("GET", FILES)
        assert (top["version"], top["is_encoded"], top["next"]) == (1, False, None)
        assert [(entry["path"], entry["kind"], entry["files"]) for entry in top["entries"]] == [
            ("README.md", "file", 1),
            ("train.csv", "file", 1),
            ("train", "folder", 9),
        ]
        assert top["entries"][2]["size_bytes"] == sum(range(1, 10))
        listed = await pages(api, FILES, "entries", folder="train")
        assert [entry["path"] for entry in listed] == ["train/0", "train/1", "train/2"]
        found = await pages(api, FILES, "entries", contains=".PNG")
        assert [entry["path"] for entry in found] == sorted(tree)
        newest = await api.request(
            "GET", "/datasets/d/versions/newest/files", folder="train/0/", contains="9"
        )
        assert [entry["path"] for entry in newest["entries"]] == ["train/0/9.png"]
        for path, query in (
            (FILES, {"folder": "tain"}),
            ("/datasets/d/versions/2/files", {}),
            ("/datasets/e/versions/1/files", {}),
        ):
            missing = await api.request("GET", path, status=404, **query)
            assert missing["error"]["hints"]

    run_scenario(tmp_path, scenario, loops=False)


def test_file_is_read_in_parts(tmp_path: Path) -> None:
    large = os.urandom(CHUNK_BYTES + 1000)

    async def scenario(api: ApiServer) -> None:
        parts = large[:CHUNK_BYTES], large[CHUNK_BYTES:]
        chunks = tuple(Digest(digest_of(part)) for part in parts)
        files = FileEntry("large.bin", len(large), chunks), FileEntry("empty", 0, ())
        tree = Manifest.build(files).encode()
        for data in (*parts, tree):
            await api.request("PUT", f"/blobs/{digest_of(data)}", data)
        await api.request("POST", "/datasets/d/versions", {"manifest": digest_of(tree)})
        complete = await read(api, "large.bin")
        assert (complete.status_code, complete.content) == (200, large)
        assert complete.headers["content-length"] == str(len(large))
        for begin, end in (
            (0, 10),
            (CHUNK_BYTES - 5, CHUNK_BYTES + 5),
            (CHUNK_BYTES, len(large)),
            (5, CHUNK_BYTES),
        ):
            part = await read(api, "large.bin", range=f"bytes={begin}-{end - 1}")
            assert (part.status_code, part.content) == (206, large[begin:end])
            assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(large)}"
        beyond = await read(api, "large.bin", range=f"bytes={len(large)}-")
        assert beyond.status_code == 416 and beyond.headers["content-range"] == f"bytes */{len(large)}"
        assert (await read(api, "empty")).content == b""
        tag = complete.headers["etag"]
        assert (await read(api, "large.bin", if_none_match=tag)).status_code == 304
        changed = await read(api, "large.bin", range="bytes=0-1", if_range='"other"')
        assert changed.content == large
        for path in ("large", "", "../large.bin", "/large.bin"):
            assert (await read(api, path)).status_code in (404, 422), path

    run_scenario(tmp_path, scenario, loops=False)


def test_file_of_a_user_is_never_a_page(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        script = b"<script>window.ran = 1</script>"
        names = {"page.html", "picture.svg", "page.xhtml", "data.xml", "a.js", "b.css", "dot.png", "c"}
        await api.push_dataset("d", dict.fromkeys(names, script))
        for name in names:
            response = await read(api, name)
            expected = "image/png" if name == "dot.png" else "application/octet-stream"
            assert response.headers["content-type"] == expected
            assert response.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
            assert response.headers["cross-origin-resource-policy"] == "same-origin"

    run_scenario(tmp_path, scenario, loops=False)


def test_damaged_file_is_reported(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("d", {"a.txt": b"precious" * 9})
        corrupt_blob(tmp_path / "blobs", b"precious" * 9)
        assert (await read(api, "a.txt")).json()["error"]["code"] == "damaged"
        lost = await read(api, "a.txt")
        assert (lost.status_code, lost.json()["error"]["code"]) == (409, "missing_blobs")

    run_scenario(tmp_path, scenario, loops=False)


def test_version_names_the_version_that_it_was_made_from(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        assert (await api.push_dataset("raw", {"a": b"1"}))["derived_from"] == ""
        await api.push_dataset("raw", {"a": b"2"})

        async def push(origin: str, status: int | None = None) -> Any:
            body = {"manifest": await api.put_tree({"b": origin.encode()}), "derived_from": origin}
            return await api.request("POST", "/datasets/clean/versions", body, status=status)

        assert (await push("raw:1"))["version"]["derived_from"] == "raw:1"
        assert (await push("raw"))["version"]["derived_from"] == "raw:2"
        assert (await api.request("GET", "/datasets/clean/versions/2"))["derived_from"] == "raw:2"
        assert "newest is 2" in (await push("raw:9", 404))["error"]["hints"][0]
        assert "raw" in (await push("row", 404))["error"]["hints"][0]
        await push("raw:x", 400)

    run_scenario(tmp_path, scenario, loops=False)


def test_runs_are_counted_and_deletion_says_what_it_frees(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("d", {"same": b"s" * 100, "a": b"a" * 10})
        await api.push_dataset("d", {"same": b"s" * 100, "b": b"b" * 20})
        await api.push_dataset("d", {"same": b"s" * 100, "c": b"c" * 40})
        run = await api.start_run(datasets=[{"name": "d", "version": 3}])
        await api.finish(run)
        assert [row["runs"] for row in (await api.request("GET", "/datasets"))["datasets"]] == [1]
        assert (await api.request("GET", "/datasets/d"))["runs"] == 1
        for version, frees_bytes in ((1, 10), (2, 20), (3, 0)):
            answer = await api.request("GET", "/datasets/d/deletion", version=version)
            assert answer == {"deleted": 1, "frees_bytes": frees_bytes}
        # the run keeps the files of version 3
        assert await api.request("GET", "/datasets/d/deletion") == {"deleted": 3, "frees_bytes": 30}
        assert (await api.request("GET", "/datasets/d"))["versions"] == 3
        assert await api.request("DELETE", "/datasets/d") == {"deleted": 3, "frees_bytes": 30}
        await api.request("GET", "/datasets/d/deletion", status=404)

    run_scenario(tmp_path, scenario)
