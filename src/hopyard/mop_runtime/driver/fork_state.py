"""The initial state of a fork, which is in the checkpoint of another study until the fork has its own
checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hopyard.domain.study import InitialState


def fork_states(files: Mapping[str, Path], fork_point: InitialState | None) -> Mapping[str, Path]:
    """Returns the states of a restored checkpoint by their names in this study.

    Of another study's checkpoint only the initial state is used, because its other names may collide with
    those of this study's states. Every checkpoint that a fork saves contains the initial state too.
    """
    if fork_point is None or fork_point.fork_state_name in files:
        return files
    return {fork_point.fork_state_name: files[fork_point.state]} if fork_point.state in files else {}
