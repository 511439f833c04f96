"""Bringing a run that was recorded offline to a server: idempotent, and it goes on where it was broken off.

The run keeps the id that it was recorded under, streams go by offset and checkpoints by content, so whatever
is sent twice is taken once.
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
from typing import Any

from hopyard.api_client.client import Client
from hopyard.domain.attempt import ExitKind
from hopyard.domain.ids import slug
from hopyard.domain.stream_limits import StreamLimits
from hopyard.errors import Conflict, HopyardError, IntegrityError, NotFound, SpecError
from hopyard.file_locks import is_locked, try_lock
from hopyard.private_files import write_atomically
from hopyard.sdk.limited_streams import LimitedStreams
from hopyard.sdk.offline import LOCK_FILE, RUN_FILE

MAX_SYNC_BYTES = 4 * 1024**2
_UPLOADED_PREFIX = ".sent-"  # begins the name of a folder that is being removed
_CREATE_WINDOW_S = 60.0  # a recording has its lock and its first words
SYNCED_FILE = "synced"  # in a folder that was kept: the server that has it
_LOST_EXIT = {
    "kind": ExitKind.LOST.value,
    "code": 1,
    "reason": "ended without a word: killed, or the machine went down",
}
# what is being sent ("streams": in bytes, "checkpoints": in pieces), done, in all
SyncProgress = Callable[[str, int, int], None]


def _ignore_progress(_what: str, _done: int, _total: int) -> None:
    return


class StillRunning(Conflict):
    """The script that records there has not ended."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What became of one offline folder. run: as the server answers it."""

    run: Mapping[str, Any]
    stream_bytes: int
    checkpoints: int


def offline_folders(root: Path) -> list[Path]:
    """The folders of recorded runs below `root` that no server has yet, the oldest first."""
    found = [file.parent for file in root.glob(f"*/{RUN_FILE}")] if root.is_dir() else []
    return sorted(folder for folder in found if not (folder / SYNCED_FILE).exists())


def clear_leftovers(root: Path) -> list[Path]:
    """Remove folders that were sent, and recordings that hold nothing.
    Those that hold something and cannot be sent: without `run.json`, for which their disk had no room."""
    lost: list[Path] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.name.startswith(_UPLOADED_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir() and not (folder / RUN_FILE).exists() and not _is_recording(folder):
            if any(file.is_file() and file.stat().st_size for file in folder.rglob("*")):
                lost.append(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    return lost


def _is_recording(folder: Path) -> bool:
    """Whether a script records there, or is about to."""
    if time.time() - folder.stat().st_mtime < _CREATE_WINDOW_S:
        return True
    with suppress(OSError):
        return is_locked(folder / LOCK_FILE)
    return False


def sync_folder(
    folder: Path, client: Client, *, keep_folders: bool = False, on_progress: SyncProgress = _ignore_progress
) -> SyncResult:
    """Send one offline folder, then remove it, or mark it where `keep_folders` is set.

    Raises NotFound when it is no such folder, StillRunning, IntegrityError when `run.json` is damaged, and
    what the server says.
    """
    with _lock_recording(folder):
        facts = _read_metadata(folder)
        run = _create_run(client, facts)
        if run.get("offline") is False:
            raise Conflict(f"{run['name']} was not recorded offline")
        attempt = f"{run['id']}.1"
        size = _send_streams(client, attempt, folder, on_progress)
        count = _send_checkpoints(client, attempt, folder, on_progress)
        _report_end(client, attempt, facts)
        if keep_folders:
            write_atomically(folder / SYNCED_FILE, client.url.encode() + b"\n")
        else:
            sent = folder.with_name(_UPLOADED_PREFIX + folder.name)
            folder.rename(sent)  # first: what is left after a crash is no run any more
            shutil.rmtree(sent, ignore_errors=True)  # the next sync looks again
    return SyncResult(client.get(f"/runs/{run['id']}"), size, count)


@contextmanager
def _lock_recording(folder: Path) -> Iterator[None]:
    if not (folder / RUN_FILE).is_file():
        raise NotFound(
            f"{folder} holds no run that was recorded offline", hints=(f"such a folder has a {RUN_FILE}",)
        )
    with try_lock(folder / LOCK_FILE) as free:
        if not free:
            hint = "sync it when its script has ended"
            raise StillRunning(
                f"{folder.name} is still being recorded, or another `hop sync` sends it", hints=(hint,)
            )
        yield


def _read_metadata(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / RUN_FILE).read_bytes())
        if not all(isinstance(facts[key], str) for key in ("id", "started_at")) or not isinstance(
            facts["argv"], list
        ):
            raise ValueError("id, started_at or argv are missing")
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise IntegrityError(f"{folder / RUN_FILE} is damaged: {bad}") from bad
    return dict(facts)


def _create_run(client: Client, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Create the run, or find it where an earlier sync created it."""
    body = {"spec": _spec(metadata), "id": metadata["id"], "started_at": metadata["started_at"]}
    try:
        return dict(client.post("/runs/offline", body))
    except (NotFound, SpecError):
        if not body["spec"]["datasets"]:
            raise
        body["spec"]["datasets"] = []  # the dataset or its version is gone, or was another server's
        return dict(client.post("/runs/offline", body))


def _spec(metadata: Mapping[str, Any]) -> dict[str, Any]:
    git = metadata.get("git")
    return {
        "project": slug(str(metadata.get("project", "")), fallback="offline"),
        "roles": [{"command": [str(word) for word in metadata["argv"]] or ["python"]}],
        "git": git if isinstance(git, dict) and git.get("commit") else None,
        "datasets": [{"name": d["name"], "version": d["version"]} for d in metadata.get("datasets") or ()],
        "environment": {
            "interpreter": str(metadata.get("interpreter") or ""),
            "python": str(metadata.get("python") or ""),
        },
    }


def _send_streams(client: Client, attempt: str, folder: Path, on_progress: SyncProgress) -> int:
    """All bytes of all streams that the server's limits leave; how many there are."""
    answer = _sync(client, attempt, _running_status(), [], final=False)
    limits = answer.get("limits") or {}
    with LimitedStreams(
        folder, StreamLimits(limits.get("output_bytes", 0), limits.get("reports_bytes", 0))
    ) as streams:
        total, offsets = sum(streams.sizes.values()), answer["offsets"]
        while True:
            done = sum(min(offsets.get(name, 0), size) for name, size in streams.sizes.items())
            on_progress("streams", done, total)
            parts: list[tuple[str, int, bytes]] = []
            left = MAX_SYNC_BYTES
            for name, size in streams.sizes.items():
                at = offsets.get(name, 0)
                if at < size and left > 0:
                    parts.append((name, at, streams.read(name, at, left)))
                    left -= len(parts[-1][2])
            if not parts:
                return total
            before, offsets = (
                offsets,
                _sync(client, attempt, _running_status(), parts, final=False)["offsets"],
            )
            if offsets == before:
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
        "segments": [{"stream": n, "offset": at, "size": len(data)} for n, at, data in parts],
        "final": final,
    }
    body = b"".join((json.dumps(head).encode(), b"\n", *(data for _, _, data in parts)))
    with client.open("POST", f"/attempts/{attempt}/replicas/0/sync", body=body) as response:
        return dict(json.loads(response.read()))


def _running_status() -> dict[str, Any]:
    return {"rank": 0, "phase": "running", "detail": "", "exit": None}


def _report_end(client: Client, attempt: str, metadata: Mapping[str, Any]) -> None:
    ended = metadata.get("exit") or _LOST_EXIT
    _sync(client, attempt, {"rank": 0, "phase": "exited", "detail": "", "exit": ended}, [], final=True)


def _send_checkpoints(client: Client, attempt: str, folder: Path, on_progress: SyncProgress) -> int:
    """Those that were announced and are still there; how many."""
    from hopyard.datasets.ignore_rules import ALL_FILES_RULES
    from hopyard.datasets.pack import pack_tree
    from hopyard.datasets.transfer import push_tree

    announced = _announced_checkpoints(folder)
    for number, event in enumerate(announced):
        on_progress("checkpoints", number, len(announced))
        tree = pack_tree(folder / "checkpoints" / Path(str(event["folder"])).name, rules=ALL_FILES_RULES)
        push_tree(tree, client)
        body = {
            "rank": 0,
            "step": int(event["step"]),
            "manifest": tree.digest,
            "created_at": datetime.fromtimestamp(float(event["t"]), UTC).isoformat(),
            "metrics": event.get("metrics") or {},
            "offsets": event.get("offsets") or {},
        }
        client.post(f"/attempts/{attempt}/checkpoints", body)
    return len(announced)


def _announced_checkpoints(folder: Path) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
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
                found[int(event["step"])] = event
        except (ValueError, KeyError, TypeError):
            continue  # a line that was cut off by a full disk
    return list(found.values())


def sync_folders(
    folders: list[Path],
    client: Client,
    *,
    keep_folders: bool = False,
    on_progress: SyncProgress = _ignore_progress,
) -> Iterator[tuple[Path, SyncResult | HopyardError]]:
    """Send one folder after another; what is wrong with one does not keep the others back."""
    for folder in folders:
        try:
            yield folder, sync_folder(folder, client, keep_folders=keep_folders, on_progress=on_progress)
        except HopyardError as failed:
            yield folder, failed
        except OSError as failed:
            yield folder, HopyardError(f"{folder}: {failed.strerror or failed}")
