"""The progress of the pull of an image, from the stream of events of Docker or Podman."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hopyard.config.units import format_bytes

_INTERVAL_S = 5.0
_RECEIVED = ("Download complete", "Pull complete", "Already exists")
_BEGUN = ("Pulling fs layer", "Waiting", "Downloading", "Already exists")  # of layers, also of other events


class PullProgress:
    """report: receives a text at most every five seconds. clock: monotonic seconds."""

    def __init__(
        self, reference: str, report: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reference, self._report, self._clock = reference, report, clock
        self._layers: dict[str, int] = {}  # id → bytes that were received
        self._received: set[str] = set()
        self._report_at = clock() + _INTERVAL_S

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes one event of the stream. Events with other content change nothing."""
        status, layer = event.get("status"), event.get("id")
        if not isinstance(layer, str) or not isinstance(status, str):
            return
        if status in _BEGUN:
            self._layers.setdefault(layer, 0)
        if layer not in self._layers:  # the tag of Docker's first event, the image of Podman's last one
            return
        if status == "Downloading":
            detail = event.get("progressDetail")
            current = detail.get("current") if isinstance(detail, dict) else None
            if isinstance(current, int):
                self._layers[layer] = max(current, self._layers[layer])
        elif status in _RECEIVED:
            self._received.add(layer)
        now = self._clock()
        if now >= self._report_at:
            self._report_at = now + _INTERVAL_S
            self._report(
                f"pulling image {self._reference}: {len(self._received)} of {len(self._layers)} layers, "
                f"{format_bytes(sum(self._layers.values()))}"
            )
