"""Detects why other replicas of a study's gang on this node have ended, which their connections do not
reveal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hopyard.errors import StudyFailed, WorkersLost

_POLL_INTERVAL_S = 1.0
_REQUESTED_EXITS = ("stopped", "preempted", "peer-failed")
_KILLED_EXITS = ("lost", "signal", "out-of-memory")  # another attempt may succeed


class PeerExits:
    """gang_dir: the folder with one folder per replica, named by rank."""

    def __init__(self, gang_dir: Path, own_rank: int) -> None:
        self._gang_dir, self._own_rank = gang_dir, str(own_rank)
        self._reported_reasons: dict[str, str] = {}  # by rank
        self._any_killed = False  # whether one of them was killed
        self._polled_at = float("-inf")

    def poll_failed(self) -> list[tuple[str, str]]:
        """Returns failed replicas that were not reported before: their name in the study, and the reason.
        Reads at most once a second."""
        now = time.monotonic()
        if now - self._polled_at < _POLL_INTERVAL_S:
            return []
        self._polled_at = now
        failed = []
        for folder in sorted(self._gang_dir.glob("[0-9]*")):
            if folder.name == self._own_rank or folder.name in self._reported_reasons:
                continue
            exit_record = _read(folder / "status.json").get("exit")
            if exit_record and exit_record["kind"] not in _REQUESTED_EXITS and exit_record["code"] != 0:
                self._reported_reasons[folder.name] = str(exit_record["reason"])
                self._any_killed |= exit_record["kind"] in _KILLED_EXITS
                launch = _read(folder / "spec.json").get("launch", {})
                failed.append(
                    (
                        f"{launch.get('role', 'replica')}-{launch.get('role_rank', folder.name)}",
                        str(exit_record["reason"]),
                    )
                )
        return failed

    def check_workers_remain(self, workers: int) -> None:
        """Raises StudyFailed if all of the study's workers have ended, since none of them returns;
        WorkersLost if one of them was killed."""
        if len(self._reported_reasons) < workers:
            return
        reasons = "; ".join(dict.fromkeys(self._reported_reasons.values()))
        hints = ["run `hop logs STUDY --rank 1` to see the output of the first worker"]
        if "out of memory" in reasons:
            hints.insert(
                0,
                "raise the memory of each worker (`resources: {memory: 2G}`), or reduce its use: a "
                "smaller batch, more workers",
            )
        failure = WorkersLost if self._any_killed else StudyFailed
        raise failure(f"all {workers} workers exited: {reasons}", hints=tuple(hints))


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
