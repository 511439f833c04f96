"""What users read of a failed git."""

from __future__ import annotations

import signal

import pytest

from hopyard.errors import SpecError, StorageFull
from hopyard.server.git_errors import GitFailed, GitRequest

URL = "https://h/p"


@pytest.mark.parametrize(
    ("code", "output", "ref", "text", "hint"),
    [
        (128, "fatal: couldn't find remote ref nothing", "nothing", "no such branch", "check the address"),
        (128, "fatal: couldn't find remote ref HEAD", "", "it is empty", "name a branch"),
        (128, "fatal: couldn't find remote ref abc1234", "abc1234", "no such branch", "all 40 digits"),
        (128, "fatal: could not read Username for 'h'", "", "or is private", "check the address"),
        (128, "error: expected commit type", "folder", "`folder` is no commit", "check the address"),
        (
            128,
            "fatal: unable to\nfatal: look\x1b[2Jup\n\n",
            "",
            r"fetched: look\x1b[2Jup",
            "upload the folder",
        ),
        (1, "", "", "git failed", "check the address"),
        (-signal.SIGXFSZ, "", "", "larger than 1.0 KiB", "hop dataset push"),
        (128, "fatal: write error: File too large", "", "larger than 1.0 KiB", "hop dataset push"),
    ],
)
def test_reason_and_hint(code: int, output: str, ref: str, text: str, hint: str) -> None:
    failure = GitFailed(code, output)
    error = failure.describe(GitRequest(URL, ref, 1024))
    assert isinstance(error, SpecError) and text in error.message
    assert any(hint in each for each in error.hints)
    assert not failure.lacks_commit


def test_full_disk_and_absent_commits_are_apart() -> None:
    full = GitFailed(128, "error: x\nfatal: write failed: No space left on device\n")
    assert isinstance(full.describe(GitRequest(URL, "", 1024)), StorageFull)
    moved = GitFailed(128, "fatal: remote error: upload-pack: not our ref 1111")
    assert moved.lacks_commit
    assert "no such commit" in moved.describe(GitRequest(URL, "main", 1024)).message
