"""Prefixes of the names of TensorBoard scalars: the part of a file's folder that gives a curve its meaning.

A path such as `runs/CartPole-v1__ppo__1__1795618329` names the place of the logs and the time of the run.
With it the same curve would have another name in every run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

_PLACE = re.compile(
    r"(runs?|logs?|tb|tb_logs|tensorboard|lightning_logs|tensorboard_logs|events|summaries|version_\d+)"
)
_TIME = re.compile(
    r"(?:^|[_\-.]+)(?:1\d{9}(?:\d{3})?(?:\.\d+)?"  # unix seconds or milliseconds
    r"|\d{8}[-_T]?\d{4}(?:\d{2})?"
    r"|\d{4}-\d{2}-\d{2}(?:[_T -]*\d{2}[-:.]?\d{2}(?:[-:.]?\d{2})?)?"
    r"|[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2}(?:_.*)?)\Z"  # PyTorch's Nov20_07-39-41_host
)
# the last folder of a path that separates the curves of one training, as Keras writes them
_SPLIT = re.compile(r"train|training|val|valid|validation|test|eval|evaluation|dev", re.I)


class EventFilePrefixes:
    """Assigns the prefixes below one root. What the folders of all known files share is left out."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[str, ...]] = {}  # by folder, without places and times
        self._prefixes: dict[str, str] = {}

    def add(self, folder: str) -> None:
        """Registers a folder with an event file, as a path relative to the root."""
        if folder not in self._parts:
            self._parts[folder] = _meaningful_parts(folder)

    def restore(self, prefixes: Mapping[str, str]) -> None:
        """Registers folders with the prefixes that they had in an earlier process."""
        for folder, prefix in prefixes.items():
            self.add(folder)
            self._prefixes[folder] = prefix

    @property
    def assigned(self) -> Mapping[str, str]:
        """The prefixes so far, by folder."""
        return self._prefixes

    def prefix(self, folder: str) -> str:
        """Returns the prefix of the files in a registered folder. Later folders never change it."""
        prefix = self._prefixes.get(folder)
        if prefix is None:
            prefix = self._prefixes[folder] = self._assign(folder)
        return prefix

    def _assign(self, folder: str) -> str:
        parts = self._parts[folder]
        shared = sum(
            takewhile(bool, (len(set(level)) == 1 for level in zip(*self._parts.values(), strict=False)))
        )
        if shared == len(parts) and parts and _SPLIT.fullmatch(os.path.basename(folder)):
            shared -= 1
        prefix = "".join(part + "/" for part in parts[shared:])
        rivals = [
            other
            for other, used in self._prefixes.items()
            if used == prefix and not _is_below(folder, other) and not _is_below(other, folder)
        ]
        # two runs in one script with folders that differ in their time only
        return f"{prefix}{len(rivals) + 1}/" if rivals else prefix


def _meaningful_parts(folder: str) -> tuple[str, ...]:
    parts: Sequence[str] = [] if folder in ("", ".") else folder.split(os.sep)
    named = (_TIME.sub("", part) for part in parts if not _PLACE.fullmatch(part))
    return tuple(part for part in named if part)


def _is_below(folder: str, other: str) -> bool:
    return other in ("", ".") or folder.startswith(other + os.sep)
