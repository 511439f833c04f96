"""Runs uv in a container of a base image: to resolve requirements for its Python, and to install them.

The container has a network, and of the node only uv, the code, local folders of links and a folder for input
and output. All are mounted below /dev, which no image holds, so that an image of the container has no trace
of them. Code of packages may run in it: it cannot read passwords of indexes, which uv gets as its input.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopyard.config.units import format_bytes
from hopyard.container_engine.container_labels import (
    BUILD_LABEL,
    IMAGE_LABEL,
    REMOVE_TIMEOUT_S,
    build_container_name,
    home_tag,
    remove_container,
)
from hopyard.container_engine.engine_api import EngineApi
from hopyard.private_files import make_folder, read_below, remove_tree, write_atomically
from hopyard.replica.container.container_image import ContainerImage
from hopyard.replica.container.container_settings import SECURITY_OPTIONS, ContainerMounts
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.package_installer import run_uv

# Root in the container owns the files of the image; packages may replace those of other users.
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
_FOLDER = Path("/dev/hopyard")
_UV, _CODE, _FILES, _LINKS = (_FOLDER / name for name in ("uv", "code", "files", "links"))
_CERTIFICATES = _FOLDER / "ca.pem"
MIN_MEMORY_BYTES = 2**30  # of uv and the compilers of packages, also if the run requests less
OUTPUT, CONSTRAINTS = _FILES / "output", _FILES / "constraints"
_SECRET = "HOPYARD_SECRET_"
# The variables and the input are removed before code of packages can run.
_SCRIPT = f"""
exec >{_FILES}/stdout 2>{_FILES}/stderr </dev/null
set -a; . {_FILES}/variables || exit 1; set +a
exec 3<{_FILES}/stdin && rm -f {_FILES}/stdin {_FILES}/variables || exit 1
cd {_CODE} || exit 1
fail() {{ echo "$1" >&2; exit 1; }}
command -v python3 >/dev/null || fail "the image has no python3: use one with Python 3.9 or newer"
{_UV} --version >/dev/null 2>&1 || fail "uv does not run in the image: use one with glibc, as Debian has"
[ "$HOPYARD_PREFER" = 0 ] || python3 -c "$HOPYARD_PREFER" >{OUTPUT} 2>/dev/null || :
cat <&3 | "$@" --python "$(command -v python3)"
"""
# uv prefers the versions that its output file names already
_INSTALLED = """
import re
from importlib.metadata import distributions
for found in distributions():
    line = f"{found.metadata['Name']}=={found.version}"
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9]+([.][0-9]+)*((a|b|rc)[0-9]+)?([.]post[0-9]+)?", line):
        print(line)
"""


@dataclass(frozen=True, slots=True)
class PackageContainer:
    """folder: of this replica, for input and output; it is made and removed here. code: the working folder.
    attempt, rank: of the replica, which removes the container at its end. memory_bytes: limit of the run; 0
    is none."""

    api: EngineApi
    base: ContainerImage
    reference: str  # of the base, for users
    home: Path
    folder: Path
    code: Path
    attempt: str
    rank: int
    memory_bytes: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory_limit(self) -> int:
        """The bytes of memory and swap: those of the run, or half of the node's memory for a run without a
        limit; at least `MIN_MEMORY_BYTES`."""
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        return max(self.memory_bytes or half, MIN_MEMORY_BYTES)

    def run(
        self,
        argv: Sequence[str],
        text: bytes,
        *,
        activity: str,
        constraints: bytes = b"",
        prefers_installed: bool = False,
        commit: str = "",
    ) -> bytes:
        """Runs uv for the Python of the image, with `text` as its input. Returns the content of OUTPUT.

        commit: the tag of the new image, if uv succeeds. constraints: the content of CONSTRAINTS.
        prefers_installed: OUTPUT names the packages of the image before. Raises PrepareFailed,
        ContainerError.
        """
        settings, links = _mounted_links(self.settings)
        # under other names, since a secret such as UV_INDEX must not change an image that others use
        secrets = {_SECRET + name: value for name, value in self.secrets.items()}
        for name in self.secrets:
            text = text.replace(f"${{{name}}}".encode(), f"${{{_SECRET}{name}}}".encode())
        files = {"stdin": text, "stdout": b"", "stderr": b"", "constraints": constraints, OUTPUT.name: b""}
        output = b""

        def run(command: Sequence[str], *, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
            nonlocal output
            proxies = [name for name in env if name.lower().endswith("_proxy")]
            variables = {name: env[name] for name in (*settings, *secrets, *proxies)}
            variables["HOPYARD_PREFER"] = _INSTALLED if prefers_installed else "0"
            mounts = {_UV: Path(command[0]).resolve(), **links}
            code, output = self._run([str(_UV), *command[1:]], files, variables, mounts, commit)
            if code == -signal.SIGKILL:
                raise PrepareFailed(
                    f"{activity}: uv was killed, probably because it used more than "
                    f"{format_bytes(self.memory_limit)} of memory (set `--memory` to a larger limit)"
                )
            return subprocess.CompletedProcess(
                command, code, stdout=b"", stderr=read_below(self.folder, "stderr")
            )

        try:
            run_uv(run, argv, activity=activity, extra_env=text, settings=settings, secrets=secrets)
        finally:
            remove_tree(self.folder)
        for name in self.secrets:
            output = output.replace(f"${{{_SECRET}{name}}}".encode(), f"${{{name}}}".encode())
        return output

    def _run(
        self,
        words: Sequence[str],
        files: Mapping[str, bytes],
        variables: Mapping[str, str],
        mounts: Mapping[Path, Path],
        commit: str,
    ) -> tuple[int, bytes]:
        """Returns the exit code, as `subprocess` returns it, and the content of OUTPUT. files: in the folder
        of input and output. mounts: read-only."""
        read_only = {_CODE: self.code.resolve(), **mounts}
        certificates = Path(os.environ.get("SSL_CERT_FILE", ""))
        if certificates.is_file():
            read_only[_CERTIFICATES] = certificates.resolve()
            variables = {**variables, "SSL_CERT_FILE": str(_CERTIFICATES)}
        if self.folder.exists():
            remove_tree(self.folder)
        make_folder(self.folder)
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items()]
        text = "".join(lines).encode(errors="surrogateescape")
        for name, data in {**files, "variables": text}.items():
            write_atomically(self.folder / name, data)
        all_mounts = ContainerMounts(read_only, {_FILES: self.folder.resolve()})
        name = build_container_name(self.home, self.attempt, self.rank)
        api = EngineApi(self.api.path, timeout_s=None)  # an installation and its image may take long
        remove_container(api, name)  # of an earlier try
        try:
            api.post("/containers/create", self._settings(words, all_mounts), name=name)
            api.post(f"/containers/{name}/start")
            code = int(api.post(f"/containers/{name}/wait")["StatusCode"])
            if code == 0 and commit:
                repository, _, tag = commit.rpartition(":")
                api.post("/commit", {}, container=name, repo=repository, tag=tag)
            return code if code < 128 else 128 - code, read_below(self.folder, OUTPUT.name)
        finally:
            remove_container(EngineApi(self.api.path, timeout_s=REMOVE_TIMEOUT_S), name)

    def _settings(self, words: Sequence[str], mounts: ContainerMounts) -> dict[str, Any]:
        """Returns the body of the request that creates the container. Its variables and labels are those of
        the image that is made of it."""
        return {
            "Image": self.base.id,
            "Entrypoint": ["/bin/sh", "-c", _SCRIPT, "hopyard"],
            "Cmd": list(words),
            "User": "0:0",
            "WorkingDir": "/",
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {IMAGE_LABEL: home_tag(self.home), BUILD_LABEL: self.attempt},
            "HostConfig": {
                "Mounts": mounts.to_json(),
                "CapDrop": ["ALL"],
                "CapAdd": list(_CAPABILITIES),
                "SecurityOpt": list(SECURITY_OPTIONS),
                "Init": True,
                "LogConfig": {"Type": "none", "Config": {}},
                "OomScoreAdj": 300,
                "Memory": self.memory_limit,
                "MemorySwap": self.memory_limit,
            },
        }


def _mounted_links(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[Path, Path]]:
    """Returns uv's settings with the local folders of links as the container sees them, and these folders:
    path in the container → path on the node."""
    if not settings.get("UV_FIND_LINKS"):
        return dict(settings), {}
    links: list[str] = []
    mounts: dict[Path, Path] = {}
    for link in settings["UV_FIND_LINKS"].split(","):
        folder = Path(link.removeprefix("file://"))
        if folder.is_absolute() and folder.is_dir():
            target = _LINKS / str(len(mounts))
            mounts[target] = folder.resolve()
            links.append(str(target))
        else:
            links.append(link)
    return {**settings, "UV_FIND_LINKS": ",".join(links)}, mounts


def without_mounted_links(lock: bytes) -> bytes:
    """Returns the lock without the folders of links that are the node's own."""
    mark = f"--find-links {_LINKS}/".encode()
    return b"".join(line for line in lock.splitlines(keepends=True) if not line.startswith(mark))
