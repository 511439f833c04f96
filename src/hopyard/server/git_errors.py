"""What the messages of a failed git mean. Pure."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from hopyard.domain.byte_text import format_bytes
from hopyard.domain.text import escape
from hopyard.errors import HopyardError, SpecError, StorageFull

FULL_COMMIT = re.compile("[0-9a-f]{40}")
_SHORT_COMMIT = re.compile("[0-9a-f]{4,39}")
_MAX_REASON = 300  # characters
_UPLOAD_HINT = "or clone it on your machine, and upload the folder"


class GitRequest(NamedTuple):
    """What was to be fetched. ref: "" for the default branch. max_bytes: of the files and of the download."""

    url: str
    ref: str
    max_bytes: int


class GitFailed(Exception):
    """A git command that failed. code: its exit status, negative for a signal. output: its errors."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(code, output)
        self.code, self.output = code, output

    @property
    def lacks_commit(self) -> bool:
        """Whether the server of the repository does not have the requested commit."""
        return self._has("not our ref", "unadvertised object")

    def _has(self, *texts: str) -> bool:
        return any(text in self.output for text in texts)

    def describe(self, request: GitRequest) -> HopyardError:
        """Returns the error for the user: SpecError, or StorageFull."""
        if self._has("No space left on device"):
            return StorageFull(
                "address: the disk of the server has no space left for the repository",
                hints=("free some space, or remove runs and datasets with `hop rm` and `hop dataset rm`",),
            )
        # of git, or of a program that it started, by the limit of the size of a file
        if self.code == -signal.SIGXFSZ or self._has("died of signal 25", "File too large"):
            return SpecError(
                f"address: the repository is larger than {format_bytes(request.max_bytes)}",
                hints=("push data with `hop dataset push`, and keep the code apart",),
            )
        check = "check the address and the branch"
        reason = self._last_line()
        if self._has("could not read Username", "Authentication failed"):
            reason = "it does not exist, or is private"
        if self._has("couldn't find remote ref"):
            reason = "it has no such branch or tag"
            if not request.ref:
                reason, check = "it is empty, or its default branch does not exist", "name a branch"
            elif _SHORT_COMMIT.fullmatch(request.ref):
                check = f"give all 40 digits of a commit, or {check}"
        if self.lacks_commit:
            reason = "it has no such commit"
        if self._has("expected commit type", "Needed a single revision"):
            reason = f"`{request.ref}` is no commit, but a folder or a file"
        return SpecError(f"address: {request.url} cannot be fetched: {reason}", hints=(check, _UPLOAD_HINT))

    def _last_line(self) -> str:
        lines = [line for line in self.output.splitlines() if line.strip()]
        return escape(lines[-1].removeprefix("fatal: ")[:_MAX_REASON]) if lines else "git failed"
