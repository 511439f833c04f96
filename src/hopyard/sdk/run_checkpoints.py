"""`hop.checkpoints()`: the checkpoints of the run that this one evaluates, each once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hopyard.domain.evaluation import EVALUATED_EVENT, EVALUATION_VARIABLE
from hopyard.errors import Forbidden, IntegrityError, MissingBlobs, NotFound, ServerUnavailable, SpecError
from hopyard.sdk import bound_objects as binding
from hopyard.sdk.checkpoints import read_checkpoint
from hopyard.sdk.session import Session
from hopyard.sdk.warn_once import warn_once

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.api_client.client import Client
    from hopyard.datasets.tree_cache import TreeCache

_POLL_INTERVAL_S = 1.0
_READ_BYTES = 1024 * 1024
_FINAL_PHASES = ("succeeded", "failed", "cancelled")
_Key = tuple[str, int]  # the attempt that saved a checkpoint, and its step


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of the evaluated run. path: its folder, until the next one is requested; of a checkpoint
    that the script saved itself, the file or the folder. metrics: the latest values that the run had logged.
    """

    step: int
    path: Path
    metrics: Mapping[str, float]


class RunCheckpoints:
    """Yields the checkpoints that are not evaluated yet, in the order of saving."""

    def __init__(self, session: Session, environ: Mapping[str, str] = os.environ) -> None:
        text = environ.get(EVALUATION_VARIABLE)
        if not text:
            raise SpecError(
                "hop.checkpoints: this run evaluates no other run",
                hints=("start the script with `hop evaluate RUN SCRIPT`",),
            )
        self._evaluation: dict[str, Any] = json.loads(text)
        self._session, self._environ = session, environ

    def __iter__(self) -> Iterator[RunCheckpoint]:
        from hopyard.api_client.local_server import connect
        from hopyard.datasets.tree_cache import TreeCache

        client = _call(lambda: connect(start=False))
        cache = TreeCache(Path(self._session.folder) / "evaluated", 0)
        done = _call(lambda: self._read_done(client))
        while True:
            # first: a run that has ended saves no checkpoint any more
            has_ended = _call(lambda: client.get_run(self._run))["phase"] in _FINAL_PHASES
            pending = self._pending(_call(lambda: self._list(client)), done)
            if not pending:
                if has_ended or not self._evaluation["follow"]:
                    if not done:
                        self._warn_of_nothing(client)
                    return
                time.sleep(_POLL_INTERVAL_S)
                continue
            checkpoint = pending[-1] if self._evaluation["newest"] else pending[0]
            with ExitStack() as stack:
                folder = self._open(client, cache, checkpoint, stack)
                if folder is not None:
                    yield self._restore(checkpoint, folder)
            self._session.metrics.default_step = None
            skipped = pending[:-1] if self._evaluation["newest"] else []
            for each in (*skipped, checkpoint):
                done.add(_key_of(each))
                self._session.events.append(EVALUATED_EVENT, attempt=each["attempt"], step=each["step"])
            cache.trim()

    @property
    def _run(self) -> str:
        return str(self._evaluation["run"])

    def _warn_of_nothing(self, client: Client) -> None:
        """Reports an evaluation that ends without any checkpoint."""
        step, rows = self._evaluation["step"], _call(lambda: list(client.iterate_run_checkpoints(self._run)))
        if step is not None:
            warn_once(f"hop.checkpoints: the run has no checkpoint of step {step}: nothing is evaluated")
        elif any(row.get("path") for row in rows):
            warn_once(
                "hop.checkpoints: the checkpoints of the run are files of its script, so they cannot restore "
                "what is bound here: evaluate them without hop.bind, by `checkpoint.path`"
            )
        else:
            warn_once("hop.checkpoints: the run has no checkpoint: nothing is evaluated")

    def _open(
        self, client: Client, cache: TreeCache, checkpoint: api.CheckpointOut, stack: ExitStack
    ) -> Path | None:
        """Returns the folder with the files, which `stack` releases; None for a checkpoint that is damaged,
        or was removed before its turn."""
        from hopyard.domain.ids import Digest

        manifest = Digest(checkpoint["manifest"])
        try:
            return cast(Path, _call(lambda: stack.enter_context(cache.open_tree(manifest, client.fetch))))
        except (IntegrityError, MissingBlobs, NotFound) as error:
            reason = error.message
        except Forbidden:  # also the response for blobs of a checkpoint that the retention has removed
            if any(_key_of(row) == _key_of(checkpoint) for row in _call(lambda: self._list(client))):
                raise
            reason = "it was removed meanwhile"
        warn_once(f"the checkpoint of step {checkpoint['step']} is skipped: {reason}")
        return None

    def _restore(self, checkpoint: api.CheckpointOut, folder: Path) -> RunCheckpoint:
        """Loads the bound objects. Metrics without a step get that of the checkpoint from now on."""
        session = self._session
        if own_path := checkpoint.get("path"):
            folder /= own_path
        elif binding.holds_state(session.bound):
            binding.restore(session.bound, read_checkpoint(str(folder)))
        session.metrics.default_step = checkpoint["step"]
        metrics = {name: float(value) for name, value in checkpoint["metrics"].items()}
        return RunCheckpoint(checkpoint["step"], folder, metrics)

    def _list(self, client: Client) -> list[api.CheckpointOut]:
        """Returns the checkpoints that users see: none that a later attempt has rolled back. Those that the
        script saved itself are for evaluations that bind nothing."""
        rows = list(client.iterate_run_checkpoints(self._run))
        attempts = list(client.iterate_run_attempts(self._run))
        numbers = {attempt["id"]: attempt["number"] for attempt in attempts}
        resumed = [
            (attempt["number"], attempt["resumed_from_step"]) for attempt in attempts if attempt["number"] > 1
        ]
        return [
            row
            for row in rows
            if not row["damaged"]
            and not (row.get("path") and binding.holds_state(self._session.bound))
            and not any(
                not row.get("path")
                and number > numbers.get(row["attempt"], 0)
                and (step is None or row["step"] > step)
                for number, step in resumed
            )
        ]

    def _pending(self, rows: Sequence[api.CheckpointOut], done: set[_Key]) -> list[api.CheckpointOut]:
        step = self._evaluation["step"]
        selected = [row for row in rows if step is None or row["step"] == step]
        newest = {row["step"]: row for row in selected}  # of one step, the one that was saved last
        return [row for row in selected if newest[row["step"]] is row and _key_of(row) not in done]

    def _read_done(self, client: Client) -> set[_Key]:
        """Returns the checkpoints that earlier processes of this replica have evaluated."""
        environ, run = self._environ, self._environ["HOPYARD_RUN_ID"]
        rank = environ.get("RANK", "0")
        done = _evaluated((Path(self._session.folder) / "streams" / "events").read_bytes())
        for attempt in client.iterate_run_attempts(run):
            if attempt["id"] != environ.get("HOPYARD_ATTEMPT"):
                done |= _evaluated(_read_stream(client, f"/runs/{run}/raw/{attempt['id']}/{rank}/events"))
        return done


def _evaluated(events: bytes) -> set[_Key]:
    done: set[_Key] = set()
    for line in events.splitlines():
        if f'"{EVALUATED_EVENT}"'.encode() in line:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the process died while it wrote it
            if event.get("kind") == EVALUATED_EVENT:
                done.add((str(event["attempt"]), int(event["step"])))
    return done


def _read_stream(client: Client, path: str) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while True:
        query = {"offset": offset, "limit": _READ_BYTES}
        with client.open("GET", path, query=query) as response:
            data = response.read()
        if not data:
            return b"".join(parts)
        parts.append(data)
        offset += len(data)


def _key_of(checkpoint: api.CheckpointOut) -> _Key:
    return checkpoint["attempt"], checkpoint["step"]


def _call(call: Any) -> Any:
    """Calls the server until it is available: an evaluation waits for it as training does."""
    while True:
        try:
            return call()
        except ServerUnavailable as error:
            warn_once(f"hop.checkpoints waits for the server: {error.message}", kind="evaluation")
            time.sleep(_POLL_INTERVAL_S)
