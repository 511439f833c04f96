"""A blob that rots on the server's disk costs what refers to it, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hopyard.domain.ids import Digest
from tests.server.stage import TOKEN, Stage, play


def spoil(folder: Path, encoded: bytes) -> None:
    """Overwrite stored bytes, wherever they lie."""
    for path in (folder / "blobs" / "packs").iterdir():
        data = path.read_bytes()
        if encoded in data:
            path.write_bytes(data.replace(encoded, b"x" * len(encoded)))
            return
    raise AssertionError("no pack holds it")


def checkpoint(step: int, manifest: str) -> dict[str, Any]:
    return {"rank": 0, "step": step, "manifest": manifest}


async def saved(at: Stage, run: Any, token: str, step: int) -> Any:
    manifest = await at.put_tree({"state": b"state %d" % step}, token=token)
    return await at.ask(
        "POST", f"/attempts/{run['id']}.1/checkpoints", checkpoint(step, manifest), token=token, status=201
    )


def test_a_damaged_checkpoint_does_not_keep_later_ones_of_the_run_away(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        token = stage.token_of(run)
        first = await saved(stage, run, token, 1)
        spoil(tmp_path, await stage.parts.blobs.get(first["manifest"]))
        asked = {"digests": [blake3(b"new").hexdigest()]}
        for _ in range(2):  # found damaged, and set aside; then gone
            assert (await stage.ask("POST", "/blobs/missing", asked, token=token))["missing"] == asked[
                "digests"
            ]
        await saved(stage, run, token, 2)

    play(tmp_path, scene)


@pytest.mark.parametrize("spoilt", ["manifest", "chunk"])
def test_a_rank_that_asks_after_another_found_the_damage_is_answered_alike(
    tmp_path: Path, spoilt: str
) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        token = stage.token_of(run)
        found = await saved(stage, run, token, 1)
        manifest = Digest(found["manifest"])
        spoil(tmp_path, await stage.parts.blobs.get(manifest) if spoilt == "manifest" else b"state 1")
        chunk = blake3(b"state 1").hexdigest()
        assert (await stage.ask("POST", f"/attempts/{run['id']}.1/checkpoints/1/verify", token=token))[
            "damaged"
        ]
        lost = manifest if spoilt == "manifest" else chunk
        said = await stage.ask(
            "POST", "/blobs/fetch", {"manifest": manifest, "digests": [lost]}, token=token, status=409
        )
        assert (said["error"]["code"], said["error"]["digests"]) == ("missing_blobs", [lost])

    play(tmp_path, scene)


def test_a_manifest_that_is_damaged_after_it_was_sent_is_asked_for_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        for step, token in enumerate((stage.token_of(run), TOKEN)):
            manifest = await stage.put_tree({"state": b"state %d" % step}, token=token)
            spoil(tmp_path, await stage.parts.blobs.get(Digest(manifest)))
            said = await stage.ask(
                "POST",
                f"/attempts/{run['id']}.1/checkpoints",
                checkpoint(step, manifest),
                token=token,
                status=409,
            )
            assert (said["error"]["code"], said["error"]["digests"]) == ("missing_blobs", [manifest])
            await saved(stage, run, token, step)

    play(tmp_path, scene)


def test_what_was_found_damaged_is_said_by_what_lists_it_until_it_is_mended(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        for step in (1, 2):
            await saved(stage, run, TOKEN, step)
        await stage.dataset("mnist", {"a": b"some data"})

        async def listed() -> tuple[list[bool], bool]:
            found = (await stage.ask("GET", f"/runs/{run['id']}/checkpoints"))["checkpoints"]
            return [one["damaged"] for one in found], bool(
                (await stage.ask("GET", "/datasets/mnist/versions/1"))["damaged"]
            )

        assert await listed() == ([False, False], False)
        spoil(tmp_path, b"state 1")
        spoil(tmp_path, b"some data")
        await stage.ask("POST", "/blobs/scrub", {})
        assert await listed() == ([True, False], True)
        await stage.put_tree({"state": b"state 1"})
        await stage.put_tree({"a": b"some data"})
        assert await listed() == ([False, False], False)

    play(tmp_path, scene)


def test_a_fork_from_the_newest_checkpoint_passes_over_one_that_is_damaged(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        for step in (1, 2, 3):
            await saved(stage, run, TOKEN, step)
        spoil(tmp_path, b"state 3")
        forked = await stage.ask("POST", f"/runs/{run['id']}/fork", {"checkpoint": "newest"})
        assert forked["spec"]["resume"]["step"] == 2
        left = await stage.ask("GET", f"/runs/{run['id']}/checkpoints")
        assert [(one["step"], one["damaged"]) for one in left["checkpoints"]] == [
            (1, False),
            (2, False),
            (3, True),
        ]
        refused = await stage.ask("POST", f"/runs/{run['id']}/fork", {"checkpoint": 3}, status=404)
        assert "readable" in refused["error"]["message"], (
            "it is known to be damaged, and not as one that never was"
        )
        spoil(tmp_path, await stage.parts.blobs.get(Digest(left["checkpoints"][0]["manifest"])))
        refused = await stage.ask("POST", f"/runs/{run['id']}/fork", {"checkpoint": 1}, status=404)
        assert "readable" in refused["error"]["message"]

    play(tmp_path, scene)
