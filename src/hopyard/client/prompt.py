"""Evaluates Python in the process of a live run, and applies the parameters that the statements assign."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.client.console import Console
from hopyard.domain import console_frames as frames
from hopyard.errors import Conflict, HopyardError, ServerUnavailable

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_NOTICE_S = 1.0  # after this time without a safe point the user is notified
_COMPLETION_S = 10.0
_SET_WAIT_S = 30.0
_WAITING = "waiting for the next safe point of the script (Ctrl-C cancels)"


class Prompt:
    """A prompt at one replica of a run.

    write: shows text of the evaluation; its first argument is the standard stream, 1 or 2. notify: shows a
    message to the user.
    """

    def __init__(
        self,
        client: Client,
        run: api.RunOut,
        rank: int,
        *,
        write: Callable[[int, bytes], None],
        notify: Callable[[str], None],
    ) -> None:
        self._client, self._run, self._write, self._notify = client, run, write, notify
        self._console = Console.open(client, run["id"], {"kind": "repl", "rank": rank})
        self._pending: list[tuple[int, dict[str, Any] | bytes]] = []

    def close(self) -> None:
        self._console.close()

    def wait_until_open(self) -> dict[str, Any]:
        """Waits for a safe point of the script. Returns its step and the version of Python. Raises Conflict
        when the script has no safe point, ServerUnavailable when it has ended."""
        return self._wait_for(frames.READY)

    def evaluate(self, source: str, mode: str) -> bool:
        """Evaluates statements. Returns whether they succeeded. KeyboardInterrupt interrupts them."""
        self._console.send_fields(frames.STATEMENT, {"source": source, "mode": mode})
        while True:
            try:
                result = self._wait_for(frames.RESULT)
                break
            except KeyboardInterrupt:
                self._console.send_fields(frames.SIGNAL, {"name": "INT"})
        ok, changes = bool(result.get("ok")), result.get("changes")
        return (self._set(changes) and ok) if isinstance(changes, dict) and changes else ok

    def complete(self, text: str) -> list[str]:
        """Returns the names that begin with the text; none if the script reaches no safe point soon."""
        self._console.send_fields(frames.COMPLETE, {"text": text})
        try:
            names = self._wait_for(frames.COMPLETIONS, limit_s=_COMPLETION_S).get("names")
        except TimeoutError:
            return []
        # an answer to an earlier text may come late
        return [str(name) for name in names if str(name).startswith(text)] if isinstance(names, list) else []

    def _set(self, changes: dict[str, Any]) -> bool:
        """Sets parameters as `hop set` does: in all processes, at one step."""
        try:
            command = self._client.create_run_command(self._run["id"], {"kind": "set", "params": changes})
            waited = self._client.get_run_command(self._run["id"], str(command["number"]), wait=_SET_WAIT_S)
        except HopyardError as error:
            self._notify(f"error: {error.message}")
            return False
        if waited["state"] == "pending":
            self._notify("the change is applied at the next safe point of all processes")
            return True
        self._notify(f"{waited['answer']}, {waited['state']} at step {waited['step']}")
        return bool(waited["state"] == "applied")

    def _wait_for(self, wanted: int, limit_s: float | None = None) -> dict[str, Any]:
        """Returns the fields of the next message of this kind, and shows the output before it."""
        began_at, is_at_safe_point, is_notified = time.monotonic(), limit_s is not None, False
        while True:
            elapsed_s = time.monotonic() - began_at
            if limit_s is not None and elapsed_s > limit_s:
                raise TimeoutError
            if not is_at_safe_point and not is_notified and elapsed_s > _NOTICE_S:
                is_notified = True
                self._notify(_WAITING)
            pause_s = _NOTICE_S / 4 if limit_s is not None or not is_notified else None
            if not select.select([self._console], [], [], pause_s)[0]:
                continue
            for kind, payload in self._console.receive():
                if kind == frames.OUTPUT:
                    self._write(1, payload)
                elif kind == frames.ERROR_OUTPUT:
                    self._write(2, payload)
                elif kind == frames.EXIT:
                    fields = frames.fields_of(payload)
                    name, reason = self._run["name"], str(fields.get("reason") or "the prompt has ended")
                    if fields.get("code") is None:
                        raise ServerUnavailable(reason)
                    raise Conflict(reason, hints=(f"run a command beside it: `hop exec {name} -- COMMAND`",))
                elif kind == wanted:
                    return frames.fields_of(payload)
                elif kind == frames.READY:
                    is_at_safe_point = True
