"""The program that makes the spec of a run or study from its file and its code, for the server.

It reads one JSON value from its input and writes one to its output. The files come from users, so the program
opens only these files and those of Python, starts no program, and opens no connection. A file that makes the
parser fail ends only this process.
"""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hopyard
from hopyard.client.build_run import with_saved_files
from hopyard.client.compose_checks import (
    check_files,
    check_requirements,
    make_environment,
    take_interpreter,
    with_relative_paths,
)
from hopyard.client.compose_study import compose_study, is_study_file
from hopyard.client.param_forms import with_param_format
from hopyard.client.submit import warn_of_secrets
from hopyard.config.run_file import read_run_section
from hopyard.config.run_file_text import format_run_file, run_file_values
from hopyard.config.yaml_section import read_yaml_text
from hopyard.errors import HopyardError

NAME = "hop.yaml"
_CPU_S, _MEMORY_BYTES = 20, 4 * 2**30
_PATH = re.compile(rf"^{re.escape(NAME)}: ([\w.+-]+): ")
_PARAM = re.compile(r"^(-p|the search over) ([\w.+-]+)(?:=.*?)?: ", re.DOTALL)
# what errors of shared code begin with, and the key of the file that they are about
_PLACES: Sequence[tuple[str, str]] = (
    ("-p", "params"),
    ("--params-as", "params_as"),
    ("--requirements", "requirements"),
    ("--container", "container"),
    ("--python", "python"),
    ("command", "roles.0.command"),
    ("checkpoints", "checkpoints"),
)
_FORBIDDEN = re.compile(
    r"^(?:subprocess\.|socket\.|os\.(exec|fork|forkpty|posix_spawn|spawn|system|startfile|link|symlink|rename"
    r"|remove|rmdir|mkdir|chmod|chown|truncate|putenv|kill)|shutil\.|ctypes\.)"
)


def main() -> None:
    request = json.load(sys.stdin)
    folder = Path(os.path.realpath(request["folder"]))
    # what is imported late would be imported below the guard as well: its files are those of Python
    _limit()
    _guard(folder)
    try:
        result = compose(request["file"].encode(), folder, base=request["base"], has_code=request["has_code"])
    except HopyardError as error:
        result = {"error": describe_error(error, folder)}
    except (OSError, RecursionError, MemoryError) as error:
        result = {"error": {"path": "", "message": f"the code cannot be read: {error}", "hints": []}}
    json.dump(result, sys.stdout)


def compose(text: bytes, folder: Path, *, base: Mapping[str, Any] | None, has_code: bool) -> dict[str, Any]:
    """Returns the RunSpec as JSON without its code, the blobs that it needs (base64, by digest), the notices
    for the user, and the file as the request gives it: its text and its values. A file with a `space` is that
    of a study (`compose_study`).

    folder: the text files of the code. base: the environment of an earlier run, which the run gets unless the
    file names another one. Raises SpecError.
    """
    top = read_yaml_text(text, NAME)
    interpreter = take_interpreter(top)
    check_requirements(top, folder)
    if is_study_file(top):
        return compose_study(top, folder, interpreter, base=base, has_code=has_code)
    request = read_run_section(top, base=folder, folder=folder)
    check_files(request, folder, top, has_code=has_code)
    notices: list[str] = []
    warn_of_secrets(request, NAME, notices.append)
    request = with_saved_files(request, folder)
    described = replace(request, interpreter=interpreter)
    result = {
        "values": run_file_values(with_relative_paths(described, folder)),
        "file": format_run_file(with_relative_paths(described, folder)),
    }
    request = with_param_format(request, folder, notify=notices.append)
    blobs: dict[str, bytes] = {}
    environment = make_environment(request, folder, interpreter, base, blobs, notices)
    return {
        **result,
        "spec": request.spec(code=None, git=None, environment=environment),
        "blobs": {digest: base64.b64encode(data).decode() for digest, data in blobs.items()},
        "notices": notices,
    }


def describe_error(error: HopyardError, folder: Path) -> dict[str, Any]:
    """Returns the error with the key of the file that it is about, "" for none."""
    message = error.message.replace(f"{folder}/", "").replace(str(folder), ".")
    hints = [hint.replace(f"{folder}/", "") for hint in error.hints]
    found = _PATH.search(message)
    if found:
        path, message = found[1], message[found.end() :]
    else:
        param = _PARAM.search(message)
        if param:
            place = "params" if param[1] == "-p" else "space"
            return {"path": f"{place}.{param[2]}", "message": message[param.end() :], "hints": hints}
        path = next((key for start, key in _PLACES if message.startswith(f"{start}:")), "")
        message = message.removeprefix(f"{NAME}: ")
    return {"path": path, "message": message, "hints": hints}


def _limit() -> None:
    for kind, amount in (
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (amount, amount))


def _guard(folder: Path) -> None:
    """Lets this process open only the folder and the files of Python, for reading, and nothing else."""
    package = Path(hopyard.__file__).parent.parent
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.fspath(package), os.fspath(folder)}
    allowed = tuple(
        os.path.realpath(root).rstrip("/") + "/" for root in (*roots, "/usr/lib", "/usr/local/lib")
    )

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return
            name = os.path.realpath(os.fsdecode(path))
            is_write = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if is_write or not (name + "/").startswith(allowed):
                raise PermissionError(13, "it is outside the code", os.fsdecode(path))
        elif _FORBIDDEN.search(event):
            raise PermissionError(13, "not permitted here", event)

    sys.addaudithook(check)


if __name__ == "__main__":
    main()
