"""The text of `hop run --dry-run`: when a run would start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def preview_lines(preview: api.PreviewOut) -> list[str]:
    """Returns the answer of the scheduler in lines for people."""
    from hopyard.cli.terminal.times import localise_times
    from hopyard.cli.why import blocker_text, estimate_lines

    queue = preview["queue"]
    lines = [f"the run {preview['sentence']}" + (f", in queue {queue}" if queue else "")]
    if preview["detail"]:
        reason = f" [{preview['reason']}]" if preview["reason"] else ""
        lines.append(f"  {localise_times(preview['detail'])}{reason}")
    if preview["blocked_by"]:
        lines += ["blocked by:", *map(blocker_text, preview["blocked_by"])]
    if preview["starts"] == "later":
        lines += estimate_lines(preview)
    lines += [f"hint: {hint}" for hint in preview["hints"]]
    if preview["what_if"]:
        lines += ["it would start", *(f"  {line['text']}" for line in preview["what_if"])]
    return [*lines, "dry run: nothing was submitted"]
