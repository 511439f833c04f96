"""The image of a container: found on the node, or pulled with the credentials of its user."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError
from hopyard.replica.container.pull_progress import PullProgress
from hopyard.replica.errors import NodeFault, PrepareFailed


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """id: of the content, which a tag may lose. variables: of the image."""

    id: str
    variables: dict[str, str]


def find_image(api: EngineApi, reference: str, report: Callable[[str], None]) -> ContainerImage:
    """Returns the image, which is pulled if the node does not have it. report: receives what takes long.
    Raises PrepareFailed, ContainerError, and NodeFault if the engine ends meanwhile."""
    try:
        return _image(api.get(f"/images/{reference}/json"))
    except ContainerError as error:
        if error.status != 404:
            raise
    report(f"pulling image {reference}")
    _pull(api.path, reference, PullProgress(reference, report))
    try:
        return _image(api.get(f"/images/{reference}/json"))
    except ContainerError as error:
        if error.status != 404:
            raise
        raise NodeFault(f"the container engine has ended while it pulled image {reference}") from error


def _image(values: dict[str, Any]) -> ContainerImage:
    entries = (values.get("Config") or {}).get("Env") or ()
    variables = {name: value for name, _, value in (str(entry).partition("=") for entry in entries)}
    return ContainerImage(str(values["Id"]), variables)


def _pull(path: Path, reference: str, progress: PullProgress) -> None:
    hint = "check the name, or load the image on the node: `podman load`, `docker load`"
    try:
        import docker  # type: ignore[import-untyped, unused-ignore]  # late: only to pull
        import docker.errors  # type: ignore[import-untyped, unused-ignore]
        from urllib3.exceptions import HTTPError
    except ModuleNotFoundError:
        raise PrepareFailed(
            f"image {reference} is not on this node, and nothing here can pull it (install "
            f"hopyard[containers] where the server runs, or pull the image there: `docker pull {reference}`)"
        ) from None
    # a name with a digest or a tag is complete; without one only the newest is pulled, not all tags
    name, tag = reference, None
    if "@" not in reference:
        head, colon, last = reference.rpartition(":")
        name, tag = (head, last) if colon and "/" not in last else (reference, "latest")
    try:
        with closing(docker.APIClient(base_url=f"unix://{path}", timeout=3600)) as client:
            for line in client.pull(name, tag=tag, stream=True, decode=True):
                if not isinstance(line, dict):
                    continue
                if line.get("error"):
                    raise PrepareFailed(f"image {reference} cannot be pulled: {line['error']} ({hint})")
                progress.add(line)
    except docker.errors.APIError as error:  # an answer of the engine
        reason = " ".join(str(error.explanation or error).split())[:500]
        raise PrepareFailed(f"image {reference} cannot be pulled: {reason} ({hint})") from error
    except (docker.errors.DockerException, HTTPException, HTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:500]
        raise NodeFault(f"the container engine does not pull image {reference}: {reason}") from error
