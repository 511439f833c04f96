"""Durable checkpoints of a study: saves the states from which it would resume, at a limited rate, in parallel
to the hops."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.errors import HopyardError
from hopyard.studies.trainer import TrainerContext
from hopyard.trial_state.shared_memory_store import StateStore


class Checkpointer:
    """Runs one save at a time in a thread.

    ensure_local: fetches a state into the store, while the driver's thread handles events. scratch_dir:
    temporary files of a save. on_done: called from that thread when a save has ended.
    """

    def __init__(
        self,
        context: TrainerContext,
        store: StateStore,
        ensure_local: Callable[[str], None],
        scratch_dir: Path,
        *,
        interval_s: float,
        on_done: Callable[[], None],
    ) -> None:
        self._context, self._store, self._ensure_local, self._scratch_dir, self._interval_s, self._on_done = (
            context,
            store,
            ensure_local,
            scratch_dir,
            interval_s,
            on_done,
        )
        self._thread: threading.Thread | None = None
        self._started_at = time.monotonic()
        self._last_states: frozenset[str] | None = None  # states of the last checkpoint

    @property
    def is_due(self) -> bool:
        return not self.is_running and time.monotonic() - self._started_at >= self._interval_s

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, states: Mapping[str, Any]) -> None:
        """Saves states by name, each with its JSON metadata. Does nothing if the last checkpoint has the same
        states."""
        self._started_at = time.monotonic()
        if not states or self._last_states == frozenset(states):
            return
        self._thread = threading.Thread(
            target=self._save, args=(dict(states),), name="study-save", daemon=True
        )
        self._thread.start()

    def _save(self, states: Mapping[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="saving-", dir=self._scratch_dir))
        try:
            files = {}
            for name in states:
                self._ensure_local(name)
                files[name] = folder / name
                self._store.export_file(name, files[name])
            self._context.save_checkpoint(files, states)
            self._last_states = frozenset(states)
        except (OSError, HopyardError) as error:
            self._context.log_message(f"the study could not be saved: {error}")
        finally:
            with suppress(OSError):
                shutil.rmtree(folder)
            self._on_done()
