"""The last output of a failed process as its exit reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.replica.exit_reasons import last_line


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("ValueError: bad\nhint: try another\n", "ValueError: bad"),
        (
            (
                "hopyard: resumed from the checkpoint of step 8\nusage: train.py\n"
                "hopyard: checkpoints take most of the time\n"
            ),
            "usage: train.py",
        ),
        ("hopyard: resumed from the checkpoint of step 8\n", ""),
        ("", ""),
    ],
)
def test_own_messages_are_not_exit_reasons(tmp_path: Path, output: str, reason: str) -> None:
    (tmp_path / "stderr").write_text(output)
    assert last_line(tmp_path / "stderr") == reason
