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
    """One save at a time, on a thread of its own. ensure_local: has a state brought to the shelf, while the
    driver's thread hears events. scratch_dir: where files lie until they are saved. on_done: called from that
    thread when one has ended."""

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
        self._last_states: frozenset[str] | None = None  # what the last one held

    @property
    def is_due(self) -> bool:
        return not self.is_running and time.monotonic() - self._started_at >= self._interval_s

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, states: Mapping[str, Any]) -> None:
        """By name, each with what is written down of it (JSON).
        Those that were saved last are not saved again."""
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
        except (OSError, HopyardError) as failed:
            self._context.log_message(f"the study could not be saved: {failed}")
        finally:
            with suppress(OSError):
                shutil.rmtree(folder)
            self._on_done()
