"""Lists and downloads the media of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from hopyard.api_client.client import Client
from hopyard.datasets.open_folder import OpenFolder
from hopyard.domain.media import SUFFIXES
from hopyard.domain.name_pattern import compile_name_pattern
from hopyard.domain.text import escape
from hopyard.errors import IntegrityError, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_BLOCK_BYTES = 1024 * 1024
_MAX_NAME_BYTES = 120
MEDIA_LIST = "media.json"  # beside the folders of the names


def list_media(
    client: Client, run: api.RunOut, names: Sequence[str] = (), *, rank: int | None = None
) -> list[api.MediaItemOut]:
    """Returns the media of a run, ordered by name, step, rank and index.

    names: only these; `*` is any text.
    """
    items = list(client.iterate_run_media(run["id"], rank=rank))
    patterns = [compile_name_pattern(name) for name in names]
    return [
        item for item in items if not patterns or any(pattern.fullmatch(item["name"]) for pattern in patterns)
    ]


def read_media(client: Client, run: api.RunOut, item: api.MediaItemOut) -> Iterator[bytes]:
    """Yields the content of an item. Raises IntegrityError for damaged content."""
    digest = blake2b(digest_size=16)
    with client.open("GET", f"/runs/{run['id']}/media/{item['id']}") as response:
        while data := response.read(_BLOCK_BYTES):
            digest.update(data)
            yield data
    if digest.hexdigest() != item["digest"]:
        raise IntegrityError(f"`{escape(item['name'])}` arrived damaged", hints=("repeat the command",))


def media_paths(items: Iterable[api.MediaItemOut]) -> dict[str, api.MediaItemOut]:
    """Returns the items by their paths in a folder that receives all: `NAME/STEP.png`.

    A name is percent-encoded, so that it is one part of a path. Where a step has several items, they are
    numbered.
    """
    by_step: dict[tuple[str, int, str], list[api.MediaItemOut]] = {}
    for item in items:
        by_step.setdefault((item["name"], item["step"], _suffix(item)), []).append(item)
    paths: dict[str, api.MediaItemOut] = {}
    for (name, step, suffix), same in by_step.items():
        for number, item in enumerate(same):
            part = f"-{number}" if len(same) > 1 else ""
            paths[f"{_folder_name(name)}/{step}{part}.{suffix}"] = item
    return paths


def fetch_media(
    client: Client, run: api.RunOut, items: Mapping[str, api.MediaItemOut], top: OpenFolder
) -> int:
    """Writes items to their paths below an open folder. Returns the number of bytes."""
    total = 0
    for path, item in items.items():
        parent, _, name = path.rpartition("/")
        if parent:
            top.make_folders([parent])
        with top.enter(parent) as folder:
            total += folder.write(name, read_media(client, run, item))
    return total


def save_media(client: Client, run: api.RunOut, items: Mapping[str, api.MediaItemOut], dest: Path) -> int:
    """Writes items below the folder `dest`. Raises SpecError if it cannot be written."""
    try:
        dest.mkdir(parents=True, exist_ok=True)
        with OpenFolder.open_path(dest) as top:
            return fetch_media(client, run, items, top)
    except OSError as error:
        raise SpecError(
            f"{error.filename or dest} cannot be written: {error.strerror}", hints=("name another folder",)
        ) from error


def _suffix(item: api.MediaItemOut) -> str:
    return SUFFIXES.get(item["type"], "bin")


def _folder_name(name: str) -> str:
    quoted = quote(name, safe=" +-_.,=@()[]")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if quoted == MEDIA_LIST:
        quoted = quoted.replace(".", "%2E")
    if len(quoted) > _MAX_NAME_BYTES:
        quoted = f"{quoted[:_MAX_NAME_BYTES]}-{blake2b(name.encode(), digest_size=6).hexdigest()}"
    return quoted
