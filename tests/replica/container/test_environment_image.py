"""Images that are built from requirements, with a real Podman: built once, reused, and evicted."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from blake3 import blake3

from hopyard.container_engine.container_labels import IMAGE_NAME, built_images
from hopyard.domain.ids import Digest
from hopyard.domain.run import Environment
from hopyard.replica.container import environment_image
from hopyard.replica.container.environment_image import BuiltImage, EnvironmentImages
from hopyard.replica.container.package_container import PackageContainer
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.python_environment import locked_packages
from tests.cli.shell import Shell, wait_until
from tests.podman import IMAGE, Podman

RUN_FILE = """
requirements: requirements.txt
container: true
roles:
  - replicas: 2
    resources: {cpus: 0.25}
    command: [python, -c, import probe; print(probe.VALUE)]
"""
_BACKEND = """
import time
def build_wheel(*_):
    time.sleep(3600)
get_requires_for_build_wheel = lambda *_: []
"""
_PROJECT = """
[project]
name = "blocked"
version = "1"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def _write_wheel(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.5.dist-info"
    files = {
        f"{name}.py": "VALUE = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in files)
    with zipfile.ZipFile(folder / f"{name}-1.5-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)


def _write_blocked_package(file: Path) -> None:
    """Writes a source archive of which the build does not end."""
    with tarfile.open(file, "w:gz") as archive:
        metadata = "Metadata-Version: 2.1\nName: blocked\nVersion: 1\n"
        for name, text in {"backend.py": _BACKEND, "pyproject.toml": _PROJECT, "PKG-INFO": metadata}.items():
            entry = tarfile.TarInfo(f"blocked-1/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


class Builder:
    """Prepares images as the replicas of one home do. steps: what they reported."""

    def __init__(self, podman: Podman, home: Path) -> None:
        self.podman, self.home = podman, home
        self.steps: list[str] = []
        (home / "work").mkdir(parents=True)

    def prepare(self, requirements: str, stack: ExitStack, *, attempt: str = "r1.1") -> BuiltImage:
        text = b"--no-index\n" + requirements.encode()
        container = partial(
            PackageContainer,
            self.podman.api,
            home=self.home,
            folder=self.home / attempt,
            code=self.home / "work",
            attempt=attempt,
            rank=0,
        )
        images = EnvironmentImages(
            self.podman.api, self.home, self.home / "envs", lambda _: text, self.steps.append, container
        )
        environment = Environment(requirements=Digest(blake3(text).hexdigest()), container=True)
        return images.prepare(environment, IMAGE, stack, cwd=self.home / "work")

    def images(self) -> set[str]:
        return {f"{IMAGE_NAME}:{tag}" for tag in built_images(self.podman.api, self.home)}


@pytest.fixture
def builder(podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    for name in ("first", "second"):
        _write_wheel(tmp_path / "wheels", name)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    yield Builder(podman, tmp_path / "home")
    assert podman.containers() == []


def test_image_is_built_once_by_replicas_that_start_together(builder: Builder) -> None:
    built: list[BuiltImage] = []
    with ExitStack() as stack:

        def prepare(attempt: str) -> None:
            built.append(builder.prepare("first\n", stack, attempt=attempt))

        threads = [threading.Thread(target=prepare, args=(f"r{number}.1",)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [locked_packages(image.lock) for image in built] == [{"first": "1.5"}] * 2
    assert b"/dev/" not in built[0].lock
    assert {image.reference for image in built} == builder.images() and len(builder.images()) == 1
    assert sorted(step.partition(" ")[0] for step in builder.steps) == ["building", "resolving"]
    values = builder.podman.api.get(f"/images/{built[0].reference}/json")
    assert not [entry for entry in values["Config"]["Env"] or () if entry.startswith(("UV_", "HOPYARD_"))]


def test_least_recently_used_image_is_removed_unless_it_is_in_use(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_image, "MAX_IMAGES", 1)
    with ExitStack() as stack:
        first = builder.prepare("first\n", stack)
        with ExitStack() as other:
            second = builder.prepare("second\n", other)
            assert builder.images() == {first.reference, second.reference}
    with ExitStack() as stack:
        both = builder.prepare("first\nsecond\n", stack)
        assert builder.images() == {both.reference}
        assert builder.prepare("first\n", stack).reference == first.reference


def test_failure_has_the_words_of_the_installer(builder: Builder) -> None:
    with ExitStack() as stack, pytest.raises(PrepareFailed, match="absent-package") as failure:
        builder.prepare("absent-package\n", stack)
    assert failure.value.exit.reason.startswith(f"the requirements cannot be met in image {IMAGE}: ")
    assert builder.images() == set() and not (builder.home / "r1.1").exists()


def test_build_that_is_killed_names_its_memory_limit(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PackageContainer, "_run", lambda *_: (-signal.SIGKILL, b""))
    with ExitStack() as stack, pytest.raises(PrepareFailed, match=r"of memory .set `--memory`") as failure:
        builder.prepare("first\n", stack)
    assert type(failure.value) is PrepareFailed  # another attempt would be killed, too


@pytest.fixture(scope="module")
def server_settings(shell: Shell) -> None:
    """Gives the server, which starts with the first command, links and a base image."""
    folder = shell.folder.parent / "wheels"
    _write_wheel(folder, "probe")
    shell.environment |= {"UV_FIND_LINKS": str(folder)}
    home = Path(shell.environment["HOPYARD_HOME"])
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(f"containers: {{base_image: {IMAGE!r}}}\n")


@pytest.mark.usefixtures("server_settings")
def test_gang_runs_in_built_image(shell: Shell, podman: Podman) -> None:
    shell.write("requirements.txt", "--no-index\nprobe\n")
    shell.write("hop.yaml", RUN_FILE)
    result = shell.hop("run", "hop.yaml")
    assert (result.code, result.text.count("42")) == (0, 2), result.stderr_text
    run = shell.hop("info", "last", "--json").json
    assert run["spec"]["environment"]["packages"]["probe"] == "1.5"
    assert run["spec"]["roles"][0]["image"] == IMAGE
    fork = shell.hop("fork", "last")  # from the recorded lock
    assert (fork.code, fork.text.count("42")) == (0, 2), fork.stderr_text
    assert len(built_images(podman.api, Path(shell.environment["HOPYARD_HOME"]))) == 1


@pytest.mark.usefixtures("server_settings")
def test_killed_build_leaves_nothing(shell: Shell, podman: Podman) -> None:
    home = Path(shell.environment["HOPYARD_HOME"])
    before = built_images(podman.api, home)
    _write_blocked_package(shell.folder / "blocked-1.tar.gz")
    shell.write("requirements.txt", "./blocked-1.tar.gz\n")
    words = ("--requirements", "requirements.txt", "--container", "--memory", "1100M")
    name = shell.detach(*words, "--", "python", "-c", "1")
    wait_until(lambda: bool(podman.containers()))
    (container,) = podman.containers()
    limits = podman.api.get(f"/containers/{container.lstrip('/')}/json")["HostConfig"]
    assert (limits["Memory"], limits["MemorySwap"]) == (1100 * 2**20, 1100 * 2**20)
    run = shell.hop("info", name, "--json").json
    status = home / "attempts" / run["attempt"]["id"] / "0" / "status.json"
    os.kill(int(json.loads(status.read_text())["pid"]), signal.SIGKILL)
    wait_until(lambda: container not in podman.containers())
    shell.hop("stop", name, "--grace", "0")
    wait_until(lambda: shell.hop("info", name, "--json").json["phase"] == "cancelled")
    wait_until(lambda: podman.containers() == [])
    assert built_images(podman.api, home) == before
