"""The containers of one home: their names, and which of them are leftover."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hopyard.container_engine.container_labels import (
    ATTEMPT_LABEL,
    HOME_LABEL,
    container_name,
    home_tag,
    network_name,
    remove_unknown_containers,
)
from hopyard.container_engine.engine_discovery import find_engine
from hopyard.errors import ContainerError
from tests.podman import IMAGE, Podman
from tests.podman import podman as podman


def _create(podman: Podman, home: Path, attempt: str) -> str:
    labels = {HOME_LABEL: home_tag(home), ATTEMPT_LABEL: attempt}
    body = {"Image": IMAGE, "Cmd": ["sleep", "60"], "Labels": labels}
    return str(podman.api.post("/containers/create", body)["Id"])


def _all(podman: Podman) -> set[str]:
    return {str(values["Id"]) for values in podman.api.get("/containers/json", all=True)}


def test_copy_of_home_has_other_names(tmp_path: Path) -> None:
    own, copy = tmp_path / "own", tmp_path / "copy"
    for home in (own, copy):
        home.mkdir()
    assert container_name(own, "r.1", 0) == container_name(tmp_path / "own" / ".", "r.1", 0)
    assert container_name(own, "r.1", 0) != container_name(copy, "r.1", 0)
    assert network_name(own, "r.1") != network_name(copy, "r.1")


def test_only_leftover_containers_of_the_own_home_are_removed(podman: Podman, tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    ids = {}
    for home in (own, other):
        home.mkdir()
        for attempt in ("a.1", "b.1"):
            ids[home, attempt] = _create(podman, home, attempt)
    assert find_engine(podman.variables).name == "Podman"
    assert remove_unknown_containers(podman.api, own, lambda: {"a.1"}) == (["b.1"], True)
    left = _all(podman)
    assert left >= set(ids.values()) - {ids[own, "b.1"]} and ids[own, "b.1"] not in left
    for home in (own, other):
        remove_unknown_containers(podman.api, home, list)
    assert not _all(podman) & set(ids.values())


def test_container_of_attempt_that_begins_meanwhile_is_kept(podman: Podman, tmp_path: Path) -> None:
    created: list[str] = []

    def list_known() -> list[str]:
        created.append(_create(podman, tmp_path, "late.1"))
        return []

    assert remove_unknown_containers(podman.api, tmp_path, list_known) == ([], True)
    assert set(created) <= _all(podman)
    assert remove_unknown_containers(podman.api, tmp_path, list) == (["late.1"], True)


def _remove_files(podman: Podman, container: str) -> None:
    """Does what Podman does in the middle of a request of which the client dies."""
    folder = podman.storage / "overlay-containers"
    for file in folder.glob("*containers.json"):
        kept = [values for values in json.loads(file.read_text()) if values["id"] != container]
        file.write_text(json.dumps(kept))
    (folder / "containers.lock").write_bytes(os.urandom(64))  # so that the files are read again


def test_container_without_files_does_not_hide_the_others(podman: Podman, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    ghosts = [_create(podman, tmp_path, attempt) for attempt in ("a.1", "b.1")]
    whole, foreign = _create(podman, tmp_path, "c.1"), _create(podman, other, "d.1")
    for ghost in ghosts:
        _remove_files(podman, ghost)
    with pytest.raises(ContainerError, match="container not known"):
        _all(podman)
    assert remove_unknown_containers(podman.api, other, lambda: {"d.1"}) == ([], True)
    with pytest.raises(ContainerError, match="container not known"):  # not those of another home
        _all(podman)
    assert remove_unknown_containers(podman.api, tmp_path, list) == (["c.1"], True)
    left = _all(podman)
    assert foreign in left and not left & {*ghosts, whole}
    assert remove_unknown_containers(podman.api, other, list) == (["d.1"], True)
