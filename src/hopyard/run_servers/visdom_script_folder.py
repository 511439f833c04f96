"""The scripts of Visdom's page. Its wheel has only some of them; Visdom downloads the others.

The folder is of this run alone: its scripts run in the browser of the user.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

_DEADLINE_S = 60.0
_DOWNLOAD = "import sys; from visdom.server.build import download_scripts as d; d(install_dir=sys.argv[1])"
_BUILT = "version.built"  # Visdom writes it after a download
_NEEDED = ("jquery.min.js", "react-react.min.js", "react-dom.min.js", "plotly-plotly.min.js")


class VisdomScriptFolder:
    """folder: the static files that Visdom serves. They are those of the package if they are complete, or
    else a copy into which the missing ones are downloaded."""

    def __init__(self) -> None:
        spec = find_spec("visdom")
        assert spec is not None and spec.origin is not None
        package = Path(spec.origin).parent / "static"
        self._copy: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = package
        if not _is_complete(package):
            self._copy = Path(tempfile.mkdtemp(prefix="hopyard-visdom-"))
            self.folder = self._copy / "static"
            shutil.copytree(package, self.folder)
            (self.folder / _BUILT).unlink(missing_ok=True)

    def start(self) -> None:
        """Downloads what is missing, in the background."""
        if self._copy is not None:
            words = [sys.executable, "-c", _DOWNLOAD, str(self._copy)]
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet)
            threading.Thread(target=self._wait, args=(self._process,), daemon=True).start()

    def close(self) -> None:
        """Ends the download, and removes its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DEADLINE_S)
        process.kill()
        process.wait()
        if _is_complete(self.folder):
            print("Visdom has downloaded the scripts of its page: reload a page that is empty", flush=True)
        else:
            print(
                "the page of Visdom stays empty: its scripts could not be downloaded from unpkg.com, "
                "cdn.plot.ly and d3js.org; plots are received and kept",
                file=sys.stderr,
                flush=True,
            )


def _is_complete(static: Path) -> bool:
    return (static / _BUILT).is_file() and all((static / "js" / name).is_file() for name in _NEEDED)
