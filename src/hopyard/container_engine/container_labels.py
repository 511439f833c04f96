"""The containers and networks of one home: their names and labels, and how leftover ones are removed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError

HOME_LABEL, ATTEMPT_LABEL, RANK_LABEL = "hopyard.home", "hopyard.attempt", "hopyard.rank"
REMOVE_TIMEOUT_S = 20.0  # for an answer to the removal of a container; the engine of the node repeats it
_NAME_DIGITS = 8  # of the label of the home
_ABSENT = 404
# Of images that are built, with the home and the attempt that built each, and of the containers in which they
# are built. Containers of an image inherit its labels, so these must not be those above.
IMAGE_LABEL, BUILD_LABEL = "hopyard.image", "hopyard.build"
IMAGE_NAME = "hopyard/env"
_BUILD_PREFIX = "hopyard-build-"
# Podman's answer about a container that it lists and that has no files any more
_GHOST = re.compile(r'from store "([0-9a-f]{64})": container not known')
_MAX_GHOSTS = 100


def home_tag(home: Path | str) -> str:
    """Returns the value of the label of the containers of a home. A copy of the home has another one."""
    path = os.path.realpath(home)
    folder = Path(path).stat()
    return hashlib.blake2s(f"{path}:{folder.st_dev}:{folder.st_ino}".encode(), digest_size=16).hexdigest()


def container_name(home: Path | str, attempt: str, rank: int) -> str:
    """Returns a name that no copy of the home uses: it has the same attempts."""
    return f"{network_name(home, attempt)}-{rank}"


def network_name(home: Path | str, attempt: str) -> str:
    return f"hopyard-{home_tag(home)[:_NAME_DIGITS]}-{attempt}"


def build_container_name(home: Path | str, attempt: str, rank: int) -> str:
    """Returns the name of the container in which a replica installs packages."""
    return f"{_BUILD_PREFIX}{home_tag(home)[:_NAME_DIGITS]}-{attempt}-{rank}"


def remove_container(api: EngineApi, name: str) -> bool:
    """Ends and removes a container. An absent one is no error. Returns whether it is gone."""
    return _remove(api, f"/containers/{name}", force=True, v=True)


def _remove(api: EngineApi, path: str, **query: bool) -> bool:
    try:
        api.delete(path, **query)
    except ContainerError as error:
        return error.status == _ABSENT
    return True


def remove_unknown_containers(
    api: EngineApi, home: Path, list_known: Callable[[], Collection[str]]
) -> tuple[list[str], bool]:
    """Removes the containers, networks and builds of this home of attempts that `list_known` does not return.
    Returns these attempts, and whether nothing of them is left. Raises ContainerError."""
    filters = {"label": [f"{HOME_LABEL}={home_tag(home)}"]}
    containers = _list_containers(api, filters)
    networks = api.get("/networks", filters=filters) or ()
    builds = _list_containers(api, _of_images(home))
    known = list_known()  # last: an attempt is known before it has a container
    unknown: dict[str, None] = {}
    is_gone: list[bool] = []
    for values in containers:
        if (attempt := _attempt(values)) not in known:
            unknown[attempt] = None
            is_gone.append(remove_container(api, values["Id"]))
    for values in networks:
        if (attempt := _attempt(values)) not in known:
            unknown[attempt] = None
            is_gone.append(_remove(api, f"/networks/{values['Id']}"))
    for values in builds:
        attempt = str(values["Labels"].get(BUILD_LABEL, ""))
        names = [str(name).lstrip("/") for name in values["Names"]]
        if attempt not in known and any(name.startswith(_BUILD_PREFIX) for name in names):
            unknown[attempt] = None
            is_gone.append(remove_container(api, values["Id"]))
    return list(unknown), all(is_gone)


def _list_containers(api: EngineApi, filters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the containers with the labels of `filters`, running or not.

    When a client of Podman dies in the middle of a request, a container may be left without its files. Podman
    then refuses to list any, until that one is removed. Nothing can run in it. Raises ContainerError.
    """
    for _ in range(_MAX_GHOSTS):
        try:
            return api.get("/containers/json", all=True, filters=filters) or []
        except ContainerError as error:
            ghost = _GHOST.search(error.message)
            if ghost is None:
                raise
            problem = error
            remove_container(api, ghost[1])  # it has these labels: the others are not looked at
    raise problem


def _attempt(values: Mapping[str, Any]) -> str:
    return str((values.get("Labels") or {}).get(ATTEMPT_LABEL, ""))


def built_images(api: EngineApi, home: Path) -> list[str]:
    """Returns the tags of the images that were built for this home, without `IMAGE_NAME`. Raises
    ContainerError."""
    tags: list[str] = []
    for values in api.get("/images/json", filters=_of_images(home)) or ():
        names = [str(name).rpartition(":") for name in values.get("RepoTags") or ()]
        tags += [tag for name, _, tag in names if name.endswith(IMAGE_NAME)]
    return tags


def _of_images(home: Path) -> dict[str, list[str]]:
    return {"label": [f"{IMAGE_LABEL}={home_tag(home)}"]}
