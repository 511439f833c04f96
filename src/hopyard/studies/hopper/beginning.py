"""The state that a fork's trial begins with, which lies in the checkpoint of another study until this one has
a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hopyard.domain.study import Beginning


def states_in(files: Mapping[str, Path], beginning: Beginning | None) -> Mapping[str, Path]:
    """The states of a restored checkpoint by their names in this study. Of another study's only the one to
    begin with is this one's: the names of all others may be those of states that this study makes itself.
    Every checkpoint of a fork's own has that one, too."""
    if beginning is None or beginning.kept_as in files:
        return files
    return {beginning.kept_as: files[beginning.state]} if beginning.state in files else {}
