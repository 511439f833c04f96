"""Where the prompts of a process are evaluated."""

from __future__ import annotations

from pathlib import Path

from hopyard.sdk.bound_objects import BoundObjects
from hopyard.sdk.live_params import LiveParams
from hopyard.sdk.prompt_point import PROMPTS_DIR, PromptPoint


def test_process_that_cannot_take_prompts_continues(tmp_path: Path) -> None:
    (tmp_path / PROMPTS_DIR).write_text("in the way")
    point = PromptPoint(str(tmp_path), BoundObjects(), LiveParams())
    point.announce(0)
    point.reach(1)
    assert (tmp_path / PROMPTS_DIR).read_text() == "in the way"
