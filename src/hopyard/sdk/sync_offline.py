"""Uploads a run that was recorded offline to a server: idempotent, and resumable after an interruption.

The run keeps its recorded id. Streams are sent by offset and checkpoints by content, so data that is sent
twice is stored once.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hopyard.api_client.client import Client
from hopyard.domain.attempt import ExitKind
from hopyard.domain.ids import slug
from hopyard.domain.stream_limits import StreamLimits
from hopyard.domain.text_decoding import escape_bytes
from hopyard.errors import Conflict, HopyardError, IntegrityError, NotFound, SpecError
from hopyard.file_locks import is_locked, try_lock
from hopyard.private_files import write_atomically
from hopyard.sdk.limited_streams import LimitedStreams
from hopyard.sdk.offline import LOCK_FILE, RUN_FILE

if TYPE_CHECKING:
    from hopyard.api_client import types as api

MAX_SYNC_BYTES = 4 * 1024**2
_UPLOADED_PREFIX = ".sent-"  # prefix of the name of a folder that is being removed
_CREATE_WINDOW_S = 60.0  # time within which a new recording creates its lock and its first records
SYNCED_FILE = "synced"  # in a folder that is kept: the URL of the server that has the run
_LOST_EXIT = {
    "kind": ExitKind.LOST.value,
    "code": 1,
    "reason": "ended without a record: killed, or the machine went down",
}
# arguments: "streams" (in bytes) or "checkpoints" (a count), done, total
SyncProgress = Callable[[str, int, int], None]


def _ignore_progress(_what: str, _done: int, _total: int) -> None:
    return


class StillRunning(Conflict):
    """The script that records to the folder has not ended."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result for one offline folder. run: the server's answer."""

    run: api.RunOut
    stream_bytes: int
    checkpoints: int


def offline_folders(root: Path) -> list[Path]:
    """Returns the folders of recorded runs below `root` that no server has yet, oldest first."""
    folders = [file.parent for file in root.glob(f"*/{RUN_FILE}")] if root.is_dir() else []
    return sorted(folder for folder in folders if not (folder / SYNCED_FILE).exists())


def clear_leftovers(root: Path) -> list[Path]:
    """Removes folders that were sent and recordings without content. Returns recordings with content that
    cannot be sent: they have no `run.json`, because the disk had no space for it."""
    unsendable: list[Path] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.name.startswith(_UPLOADED_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir() and not (folder / RUN_FILE).exists() and not _is_recording(folder):
            if any(file.is_file() and file.stat().st_size for file in folder.rglob("*")):
                unsendable.append(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    return unsendable


def _is_recording(folder: Path) -> bool:
    """Returns whether a script records to the folder, or is about to."""
    if time.time() - folder.stat().st_mtime < _CREATE_WINDOW_S:
        return True
    with suppress(OSError):
        return is_locked(folder / LOCK_FILE)
    return False


def sync_folder(
    folder: Path, client: Client, *, keep_folders: bool = False, on_progress: SyncProgress = _ignore_progress
) -> SyncResult:
    """Uploads one offline folder, then removes it, or marks it if `keep_folders` is set.

    Raises NotFound if it is not an offline folder, StillRunning, IntegrityError if `run.json` is damaged, and
    the errors of the server.
    """
    with _lock_recording(folder):
        metadata = _read_metadata(folder)
        run = _create_run(client, metadata)
        if run.get("offline") is False:
            raise Conflict(f"{run['name']} was not recorded offline")
        attempt = f"{run['id']}.1"
        size = _send_streams(client, attempt, folder, on_progress)
        count = _send_checkpoints(client, attempt, folder, on_progress)
        _report_end(client, attempt, metadata)
        if keep_folders:
            write_atomically(folder / SYNCED_FILE, client.url.encode() + b"\n")
        else:
            sent_folder = folder.with_name(_UPLOADED_PREFIX + folder.name)
            folder.rename(sent_folder)  # first: after a crash the rest is not a run any more
            shutil.rmtree(sent_folder, ignore_errors=True)  # the next sync retries it
    return SyncResult(client.get_run(run["id"]), size, count)


@contextmanager
def _lock_recording(folder: Path) -> Iterator[None]:
    if not (folder / RUN_FILE).is_file():
        raise NotFound(
            f"{folder} holds no run that was recorded offline", hints=(f"such a folder has a {RUN_FILE}",)
        )
    with try_lock(folder / LOCK_FILE) as acquired:
        if not acquired:
            hint = "sync it after its script has ended"
            raise StillRunning(
                f"{folder.name} is still being recorded, or another `hop sync` sends it", hints=(hint,)
            )
        yield


def _read_metadata(folder: Path) -> dict[str, Any]:
    try:
        metadata = json.loads((folder / RUN_FILE).read_bytes())
        if not all(isinstance(metadata[key], str) for key in ("id", "started_at")) or not isinstance(
            metadata["argv"], list
        ):
            raise ValueError("id, started_at or argv are missing")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{folder / RUN_FILE} is damaged: {error}") from error
    return dict(metadata)


def _create_run(client: Client, metadata: Mapping[str, Any]) -> api.RunOut:
    """Creates the run, or returns the one that an earlier sync created."""
    spec = _spec(metadata)
    body: api.OfflineIn = {"spec": spec, "id": metadata["id"], "started_at": metadata["started_at"]}
    try:
        return client.create_offline_run(body)
    except (NotFound, SpecError):
        if not spec.get("datasets"):
            raise
        spec["datasets"] = []  # the dataset or its version was deleted, or is from another server
        return client.create_offline_run(body)


def _spec(metadata: Mapping[str, Any]) -> api.SpecIn:
    git = metadata.get("git")
    return {
        "project": slug(str(metadata.get("project", "")), fallback="offline"),
        "roles": [{"command": [escape_bytes(str(argument)) for argument in metadata["argv"]] or ["python"]}],
        "git": cast("api.GitIn", git) if isinstance(git, dict) and git.get("commit") else None,
        "datasets": [{"name": d["name"], "version": d["version"]} for d in metadata.get("datasets") or ()],
        "environment": {
            "interpreter": escape_bytes(str(metadata.get("interpreter") or "")),
            "python": str(metadata.get("python") or ""),
        },
    }


def _send_streams(client: Client, attempt: str, folder: Path, on_progress: SyncProgress) -> int:
    """Uploads all bytes of all streams within the server's limits; returns their number."""
    answer = _sync(client, attempt, _running_status(), [], final=False)
    limits = answer.get("limits") or {}
    with LimitedStreams(
        folder,
        StreamLimits(
            limits.get("output_bytes", 0),
            limits.get("reports_bytes", 0),
            media_bytes=limits.get("media_bytes", 0),
        ),
    ) as streams:
        total, offsets = sum(streams.sizes.values()), answer["offsets"]
        while True:
            done = sum(min(offsets.get(name, 0), size) for name, size in streams.sizes.items())
            on_progress("streams", done, total)
            parts: list[tuple[str, int, bytes]] = []
            remaining = MAX_SYNC_BYTES
            for name, size in streams.sizes.items():
                offset = offsets.get(name, 0)
                if offset < size and remaining > 0:
                    parts.append((name, offset, streams.read(name, offset, remaining)))
                    remaining -= len(parts[-1][2])
            if not parts:
                return total
            previous_offsets, offsets = (
                offsets,
                _sync(client, attempt, _running_status(), parts, final=False)["offsets"],
            )
            if offsets == previous_offsets:
                raise IntegrityError(f"the server takes no more of {', '.join(name for name, _, _ in parts)}")


def _sync(
    client: Client,
    attempt: str,
    status: Mapping[str, Any],
    parts: list[tuple[str, int, bytes]],
    *,
    final: bool,
) -> dict[str, Any]:
    head = {
        "status": status,
        "segments": [{"stream": n, "offset": offset, "size": len(data)} for n, offset, data in parts],
        "final": final,
    }
    body = b"".join((json.dumps(head).encode(), b"\n", *(data for _, _, data in parts)))
    with client.open("POST", f"/attempts/{attempt}/replicas/0/sync", body=body) as response:
        return dict(json.loads(response.read()))


def _running_status() -> dict[str, Any]:
    return {"rank": 0, "phase": "running", "detail": "", "exit": None}


def _report_end(client: Client, attempt: str, metadata: Mapping[str, Any]) -> None:
    exit_record = metadata.get("exit") or _LOST_EXIT
    _sync(client, attempt, {"rank": 0, "phase": "exited", "detail": "", "exit": exit_record}, [], final=True)


def _send_checkpoints(client: Client, attempt: str, folder: Path, on_progress: SyncProgress) -> int:
    """Uploads the announced checkpoints that still exist; returns their number."""
    from hopyard.datasets.ignore_rules import ALL_FILES_RULES
    from hopyard.datasets.pack import pack_tree
    from hopyard.datasets.transfer import push_tree

    announced = _announced_checkpoints(folder)
    for number, event in enumerate(announced):
        on_progress("checkpoints", number, len(announced))
        tree = pack_tree(folder / "checkpoints" / Path(str(event["folder"])).name, rules=ALL_FILES_RULES)
        push_tree(tree, client)
        body: api.CheckpointIn = {
            "rank": 0,
            "step": int(event["step"]),
            "manifest": tree.digest,
            "created_at": datetime.fromtimestamp(float(event["t"]), UTC).isoformat(),
            "metrics": event.get("metrics") or {},
            "offsets": event.get("offsets") or {},
            "kept": event.get("kept") is True,
            "best_by": str(event.get("best_by") or ""),
        }
        client.create_attempt_checkpoint(attempt, body)
    return len(announced)


def _announced_checkpoints(folder: Path) -> list[dict[str, Any]]:
    events_by_step: dict[int, dict[str, Any]] = {}
    try:
        lines = (folder / "streams" / "events").read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            event = json.loads(line)
            if (
                event["kind"] == "checkpoint"
                and (folder / "checkpoints" / Path(str(event["folder"])).name).is_dir()
            ):
                events_by_step[int(event["step"])] = event
        except (ValueError, KeyError, TypeError):
            continue  # a line that a full disk truncated
    return list(events_by_step.values())


def sync_folders(
    folders: list[Path],
    client: Client,
    *,
    keep_folders: bool = False,
    on_progress: SyncProgress = _ignore_progress,
) -> Iterator[tuple[Path, SyncResult | HopyardError]]:
    """Uploads one folder after another; an error in one does not stop the others."""
    for folder in folders:
        try:
            yield folder, sync_folder(folder, client, keep_folders=keep_folders, on_progress=on_progress)
        except HopyardError as error:
            yield folder, error
        except OSError as error:
            yield folder, HopyardError(f"{folder}: {error.strerror or error}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            yield folder, IntegrityError(f"{folder} is damaged: {type(error).__name__}: {error}")
