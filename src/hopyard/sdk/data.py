"""`hop.dataset_path`: where a dataset of this run lies."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hopyard.errors import NotFound, SpecError


def find_dataset(name: str | None) -> Path:
    """The folder of dataset `name`, or of the only one. Raises NotFound with the names that there are."""
    there = _given(os.environ.get("HOPYARD_DATASETS"))
    if name is None:
        if len(there) != 1:
            listed = ", ".join(sorted(there)) or "none"
            raise SpecError(f"hop.dataset_path: which dataset? This run has {listed}", hints=("`hop run -d NAME` gives it one",))
        return Path(next(iter(there.values())))
    if name in there:
        return Path(there[name])
    raise NotFound(f"this run has no dataset `{name}`", hints=(f"`hop run -d {name} …`",))


def _given(text: str | None) -> dict[str, str]:
    try:
        found = json.loads(text or "{}")
    except ValueError as bad:
        raise SpecError(f"HOPYARD_DATASETS is not JSON: {bad}") from bad
    return {str(k): str(v) for k, v in found.items()}
