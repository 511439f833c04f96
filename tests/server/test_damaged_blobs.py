"""A damaged blob on the server's disk affects only its references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hopyard.domain.ids import Digest
from tests.server.api_server import TOKEN, ApiServer, run_scenario


def corrupt_bytes(folder: Path, encoded: bytes) -> None:
    """Overwrites these stored bytes in every file that contains them."""
    for path in (folder / "blobs" / "packs").iterdir():
        data = path.read_bytes()
        if encoded in data:
            path.write_bytes(data.replace(encoded, b"x" * len(encoded)))
            return
    raise AssertionError("no pack holds it")


def checkpoint(step: int, manifest: str) -> dict[str, Any]:
    return {"rank": 0, "step": step, "manifest": manifest}


async def save_checkpoint(at: ApiServer, run: Any, token: str, step: int) -> Any:
    manifest = await at.put_tree({"state": b"state %d" % step}, token=token)
    return await at.request(
        "POST", f"/attempts/{run['id']}.1/checkpoints", checkpoint(step, manifest), token=token, status=201
    )


def test_damaged_checkpoint_does_not_block_later_ones(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        token = api.run_token(run)
        first = await save_checkpoint(api, run, token, 1)
        corrupt_bytes(tmp_path, await api.services.blobs.get(first["manifest"]))
        request = {"digests": [blake3(b"new").hexdigest()]}
        for _ in range(2):  # first damaged and quarantined, then missing
            assert (await api.request("POST", "/blobs/missing", request, token=token))["missing"] == request[
                "digests"
            ]
        await save_checkpoint(api, run, token, 2)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("spoilt", ["manifest", "chunk"])
def test_second_rank_gets_the_same_answer_about_damage(tmp_path: Path, spoilt: str) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        token = api.run_token(run)
        result = await save_checkpoint(api, run, token, 1)
        manifest = Digest(result["manifest"])
        corrupt_bytes(
            tmp_path, await api.services.blobs.get(manifest) if spoilt == "manifest" else b"state 1"
        )
        chunk = blake3(b"state 1").hexdigest()
        assert (await api.request("POST", f"/attempts/{run['id']}.1/checkpoints/1/verify", token=token))[
            "damaged"
        ]
        lost = manifest if spoilt == "manifest" else chunk
        response = await api.request(
            "POST", "/blobs/fetch", {"manifest": manifest, "digests": [lost]}, token=token, status=409
        )
        assert (response["error"]["code"], response["error"]["digests"]) == ("missing_blobs", [lost])

    run_scenario(tmp_path, scenario)


def test_damaged_manifest_is_requested_again(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        for step, token in enumerate((api.run_token(run), TOKEN)):
            manifest = await api.put_tree({"state": b"state %d" % step}, token=token)
            corrupt_bytes(tmp_path, await api.services.blobs.get(Digest(manifest)))
            response = await api.request(
                "POST",
                f"/attempts/{run['id']}.1/checkpoints",
                checkpoint(step, manifest),
                token=token,
                status=409,
            )
            assert (response["error"]["code"], response["error"]["digests"]) == ("missing_blobs", [manifest])
            await save_checkpoint(api, run, token, step)

    run_scenario(tmp_path, scenario)


def test_listings_mark_damaged_blobs_until_they_are_repaired(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        for step in (1, 2):
            await save_checkpoint(api, run, TOKEN, step)
        await api.push_dataset("mnist", {"a": b"some data"})

        async def listed() -> tuple[list[bool], bool]:
            result = (await api.request("GET", f"/runs/{run['id']}/checkpoints"))["checkpoints"]
            return [row["damaged"] for row in result], bool(
                (await api.request("GET", "/datasets/mnist/versions/1"))["damaged"]
            )

        assert await listed() == ([False, False], False)
        corrupt_bytes(tmp_path, b"state 1")
        corrupt_bytes(tmp_path, b"some data")
        await api.request("POST", "/blobs/scrub", {})
        assert await listed() == ([True, False], True)
        await api.put_tree({"state": b"state 1"})
        await api.put_tree({"a": b"some data"})
        assert await listed() == ([False, False], False)

    run_scenario(tmp_path, scenario)


def test_fork_from_the_newest_checkpoint_skips_a_damaged_one(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        for step in (1, 2, 3):
            await save_checkpoint(api, run, TOKEN, step)
        corrupt_bytes(tmp_path, b"state 3")
        forked = await api.request("POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest"})
        assert forked["spec"]["resume"]["step"] == 2
        remaining = await api.request("GET", f"/runs/{run['id']}/checkpoints")
        assert [(checkpoint["step"], checkpoint["damaged"]) for checkpoint in remaining["checkpoints"]] == [
            (1, False),
            (2, False),
            (3, True),
        ]
        refused = await api.request("POST", f"/runs/{run['id']}/fork", {"checkpoint": 3}, status=404)
        assert "readable" in refused["error"]["message"], "it is reported as damaged, not as missing"
        corrupt_bytes(tmp_path, await api.services.blobs.get(Digest(remaining["checkpoints"][0]["manifest"])))
        refused = await api.request("POST", f"/runs/{run['id']}/fork", {"checkpoint": 1}, status=404)
        assert "readable" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)
