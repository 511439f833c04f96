from __future__ import annotations

from pathlib import Path

import pytest

from .scripts import Replica


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)
