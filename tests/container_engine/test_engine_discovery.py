"""Which container engine is used, and what is reported without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.container_engine.container_labels import (
    ATTEMPT_LABEL,
    HOME_LABEL,
    home_tag,
    remove_unknown_containers,
)
from hopyard.container_engine.engine_discovery import find_engine
from hopyard.errors import ContainerError
from tests.podman import IMAGE, Podman
from tests.podman import podman as podman


def test_missing_engine_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="neither Docker nor Podman") as absent:
        find_engine({"DOCKER_HOST": f"unix://{tmp_path}/absent.sock"})
    assert "install Podman" in absent.value.hints[0]
    (tmp_path / "file.sock").write_text("")
    with pytest.raises(ContainerError, match=r"file\.sock cannot be reached"):
        find_engine({"DOCKER_HOST": f"unix://{tmp_path}/file.sock"})
    with pytest.raises(ContainerError, match="not a socket of this node"):
        find_engine({"DOCKER_HOST": "tcp://10.0.0.1:2375"})


def test_only_leftover_containers_of_the_own_home_are_removed(podman: Podman, tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    ids = {}
    for home in (own, other):
        home.mkdir()
        for attempt in ("a.1", "b.1"):
            labels = {HOME_LABEL: home_tag(home), ATTEMPT_LABEL: attempt}
            body = {"Image": IMAGE, "Cmd": ["sleep", "60"], "Labels": labels}
            ids[home, attempt] = podman.api.post("/containers/create", body)["Id"]
    assert find_engine(podman.variables).name == "Podman"
    assert remove_unknown_containers(podman.api, own, {"a.1"}) == ["b.1"]
    left = {values["Id"] for values in podman.api.get("/containers/json", all=True)}
    assert left >= set(ids.values()) - {ids[own, "b.1"]} and ids[own, "b.1"] not in left
    for home in (own, other):
        remove_unknown_containers(podman.api, home, ())
    assert not {values["Id"] for values in podman.api.get("/containers/json", all=True)} & set(ids.values())
