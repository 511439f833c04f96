"""The containers and networks of one home: their names and labels, and how leftover ones are removed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError

HOME_LABEL, ATTEMPT_LABEL, RANK_LABEL = "hopyard.home", "hopyard.attempt", "hopyard.rank"
# Of images that are built, with the home and the attempt that built each, and of the containers in which they
# are built. Containers of an image inherit its labels, so these must not be those above.
IMAGE_LABEL, BUILD_LABEL = "hopyard.image", "hopyard.build"
IMAGE_NAME = "hopyard/env"
_BUILD_PREFIX = "hopyard-build-"


def home_tag(home: Path | str) -> str:
    """Returns the value of the label of the containers of a home. A copy of the home has another one."""
    path = os.path.realpath(home)
    folder = Path(path).stat()
    return hashlib.blake2s(f"{path}:{folder.st_dev}:{folder.st_ino}".encode(), digest_size=16).hexdigest()


def container_name(attempt: str, rank: int) -> str:
    return f"hopyard-{attempt}-{rank}"


def build_container_name(attempt: str, rank: int) -> str:
    """Returns the name of the container in which a replica installs packages."""
    return f"{_BUILD_PREFIX}{attempt}-{rank}"


def network_name(attempt: str) -> str:
    return f"hopyard-{attempt}"


def remove_containers(api: EngineApi, names: Sequence[str]) -> None:
    """Ends and removes containers. What is absent is no error."""
    for name in names:
        with suppress(ContainerError):
            api.delete(f"/containers/{name}", force=True, v=True)


def remove_network(api: EngineApi, attempt: str) -> None:
    """Removes the network of an attempt unless containers use it."""
    with suppress(ContainerError):
        api.delete(f"/networks/{network_name(attempt)}")


def remove_unknown_containers(api: EngineApi, home: Path, known: Collection[str]) -> list[str]:
    """Removes the containers and networks of this home of attempts that are not in `known`, and the rest of
    their builds. Returns these attempts. Raises ContainerError."""
    filters = {"label": [f"{HOME_LABEL}={home_tag(home)}"]}
    unknown: dict[str, None] = {}
    for values in api.get("/containers/json", all=True, filters=filters) or ():
        attempt = str(values["Labels"].get(ATTEMPT_LABEL, ""))
        if attempt not in known:
            unknown[attempt] = None
            remove_containers(api, [values["Id"]])
    for values in api.get("/networks", filters=filters) or ():
        attempt = str((values.get("Labels") or {}).get(ATTEMPT_LABEL, ""))
        if attempt not in known:
            unknown[attempt] = None
            remove_network(api, attempt)
    for values in api.get("/containers/json", all=True, filters=_of_images(home)) or ():
        attempt = str(values["Labels"].get(BUILD_LABEL, ""))
        names = [str(name).lstrip("/") for name in values["Names"]]
        if attempt not in known and any(name.startswith(_BUILD_PREFIX) for name in names):
            unknown[attempt] = None
            remove_containers(api, [values["Id"]])
    return list(unknown)


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
