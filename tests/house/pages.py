"""Pages as programs: the fenced blocks of a Markdown page, and a shell that does what the page tells people
to do.

```python NAME.py     is written to NAME.py           ```sh          is run; every line must succeed
```yaml NAME.yaml     likewise                        ```sh fails    is run; every line must fail
                                                      ```sh shown    is for reading only
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)(?: +([^\n]*?))? *\n(.*?)^```", re.M | re.S)
LINE_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Block:
    """word: the text after the language on the opening line."""

    language: str
    word: str
    body: str

    def lines(self) -> Iterator[str]:
        """Returns the commands, with lines continued by a backslash joined."""
        yield from filter(None, (line.strip() for line in self.body.replace("\\\n", " ").splitlines()))


def code_blocks(page: Path) -> list[Block]:
    return [Block(language, word, body) for language, word, body in BLOCK.findall(page.read_text())]


def run_page(page: Path, *, folder: Path, home: Path, leave_out: tuple[str, ...] = ()) -> None:
    """Executes the page in `folder`, block by block, with the `hop` of this interpreter and a separate home.

    leave_out: beginnings of lines that are not run. Always ends the server.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "HOPYARD_HOME": str(home), "PATH": path, "COLUMNS": "100"}
    try:
        for block in code_blocks(page):
            if block.language in ("python", "yaml") and block.word:
                (folder / block.word).write_text(block.body)
            elif block.language == "sh" and block.word != "shown":
                for line in block.lines():
                    if not line.startswith(leave_out or ("\0",)):
                        _run(line, folder, env, fails=block.word == "fails")
    finally:
        subprocess.run(
            [sys.executable, "-m", "hopyard.cli", "down", "--stop-runs"],
            env=env,
            cwd=folder,
            check=False,
            capture_output=True,
        )


def _run(line: str, folder: Path, env: dict[str, str], *, fails: bool) -> None:
    result = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LINE_TIMEOUT_S,
        check=False,
    )
    assert (result.returncode != 0) == fails, (
        f"$ {line}\nexit code {result.returncode}\n{result.stdout}{result.stderr}"
    )
    assert "Traceback" not in result.stderr, f"$ {line}\n{result.stderr}"
