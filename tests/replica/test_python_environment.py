"""Environments from requirements: built once per lock, shared, and reused by a fork."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import fcntl
import io
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hopyard.datasets.fingerprint import fingerprint
from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.ids import Digest
from hopyard.domain.resources import Resources
from hopyard.domain.run import Environment
from hopyard.private_files import make_folder, remove_tree
from hopyard.replica import python_environment
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.mount_namespace import IsolationMode, MountView, detect_isolation_mode
from hopyard.replica.package_installer import uv_error
from hopyard.replica.python_environment import locked_packages
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

SHOWS = "import probe, sys; print(probe.__version__, sys.prefix)"


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The available packages: one small wheel."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    about = "probe-1.5.dist-info"
    files = {
        "probe.py": "__version__ = '1.5'\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: probe\nVersion: 1.5\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": f"probe.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n",
    }
    with zipfile.ZipFile(folder / "probe-1.5-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))  # user settings for pip apply to uv as well
    monkeypatch.setenv("UV_NO_INDEX", "1")


def modify_package(environment: Path) -> None:
    """Changes a package as a run could do that is root or changes modes."""
    (module,) = environment.glob("lib/python*/site-packages/probe.py")
    assert module.stat().st_mode & 0o222 == 0
    assert module.stat().st_nlink == 1, "uv's cache has files of its own"
    assert list(module.parent.glob("__pycache__/probe.*.pyc"))
    module.chmod(0o600)
    module.write_text("__version__ = 'POISONED'\n")


def break_environment(environment: Path) -> None:
    """Leaves an environment as if its build had not installed all packages."""
    (record,) = environment.glob("lib/python*/site-packages/probe-1.5.dist-info")
    remove_tree(record)
    environment.with_name(f"{environment.name}.seen").write_text(fingerprint(environment, excluded=".ready"))


def test_changed_environment_is_rebuilt(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.environment = Environment(requirements=Digest(fixture.sink.put_blob(b"probe\n")))
        await fixture.launch("a.1", SHOWS)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        prefix = Path(fixture.sink.stream("a.1", 0, "stdout").decode().split()[1])
        modify_package(prefix)
        await fixture.launch("b.1", SHOWS)
        assert [ended.reason for ended in await fixture.wait_exits("b.1")] == ["finished"]
        assert fixture.sink.stream("b.1", 0, "stdout") == fixture.sink.stream("a.1", 0, "stdout")
        assert b"was changed on this node" in fixture.sink.stream("b.1", 0, "events")

    run_scenario(scenario)


def test_broken_environment_is_built_again_for_the_next_attempt(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.environment = Environment(requirements=Digest(fixture.sink.put_blob(b"probe\n")))
        await fixture.launch("a.1", SHOWS)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        prefix = Path(fixture.sink.stream("a.1", 0, "stdout").decode().split()[1])
        break_environment(prefix)
        await fixture.launch("b.1", SHOWS)
        (failed,) = await fixture.wait_exits("b.1")
        assert failed.kind is ExitKind.NODE_FAULT
        assert "preflight check `environment` failed: package probe of its lock is not" in failed.reason
        assert "hint: the next attempt builds the environment again" in failed.reason
        await fixture.launch("b.2", SHOWS)
        assert [ended.reason for ended in await fixture.wait_exits("b.2")] == ["finished"]
        assert fixture.sink.stream("b.2", 0, "stdout") == fixture.sink.stream("a.1", 0, "stdout")

    run_scenario(scenario)


def test_concurrent_runs_build_environment_once_and_fork_reuses_lock(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        expected_authorization = Environment(requirements=Digest(fixture.sink.put_blob(b"probe\n")))
        two = Resources(2000)
        fixture.environment = expected_authorization
        await asyncio.gather(
            fixture.launch("a.1", SHOWS, resources=two), fixture.launch("b.1", SHOWS, resources=two)
        )
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        assert [ended.reason for ended in await fixture.wait_exits("b.1")] == ["finished"]
        assert fixture.sink.stream("a.1", 0, "stdout") == fixture.sink.stream("b.1", 0, "stdout")
        prefix = Path(fixture.sink.stream("a.1", 0, "stdout").decode().split()[1])
        assert prefix.parent == fixture.home.envs
        assert len(list(fixture.home.envs.glob("*/.ready"))) == 1
        lock = fixture.sink.locks["a.1"]
        assert lock["packages"].keys() == {"probe"}
        assert locked_packages(fixture.sink.blobs[lock["lock"]]) == lock["packages"]

        holds = (await fixture.node()).holds
        assert holds == {expected_authorization.requirements, lock["lock"]}, (
            "others that want it are placed here"
        )

        built_at = (prefix / ".ready").read_bytes()
        shutil.rmtree(fixture.home.envs / "locks")  # nothing is resolved again
        fixture.environment = dataclasses.replace(expected_authorization, lock=Digest(lock["lock"]))
        await fixture.launch("c.1", SHOWS, resources=two)
        assert [ended.reason for ended in await fixture.wait_exits("c.1")] == ["finished"]
        assert (prefix / ".ready").read_bytes() == built_at
        assert "c.1" not in fixture.sink.locks
        (prefix / ".ready").unlink()  # as after an eviction
        shutil.rmtree(prefix)
        await fixture.observe_until(lambda seen: not seen.nodes[0].holds)

    run_scenario(scenario)


class Index(ThreadingHTTPServer):
    """A package index that wants a password, over the folder of wheels."""

    def __init__(self, wheels: Path) -> None:
        self.wheels, self.refused = wheels, 0
        super().__init__(("127.0.0.1", 0), _IndexHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://owner:INDEXPASSWORD@127.0.0.1:{self.server_port}/simple/"


class _IndexHandler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        expected_authorization = "Basic " + base64.b64encode(b"owner:INDEXPASSWORD").decode()
        result = self.server.wheels / self.path.rsplit("/", 1)[-1]
        if self.headers.get("Authorization") != expected_authorization:
            self.server.refused += 1
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            data = b""
        elif self.path in ("/simple/probe/", "/simple/src/"):
            name = self.path.split("/")[2]
            data = "".join(
                f'<a href="/files/{file.name}">{file.name}</a>'
                for file in self.server.wheels.glob(f"{name}-*")
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
        else:
            data = result.read_bytes() if result.is_file() else b""
            self.send_response(200 if data else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.mark.parametrize("named_in", ["settings", "requirements"])
def test_index_credentials_stay_out_of_locks_and_reasons(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named_in: str
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    index = Index(tmp_path / "wheels")
    first = f"--index-url {index.address}\n" if named_in == "requirements" else ""
    if named_in == "settings":
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.address)

    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.environment = Environment(
            requirements=Digest(fixture.sink.put_blob(f"{first}probe\n".encode()))
        )
        await fixture.launch("a.1", SHOWS)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        lock = Digest(fixture.sink.locks["a.1"]["lock"])
        assert b"probe==1.5" in fixture.sink.blobs[lock]
        shutil.rmtree(fixture.home.envs)
        shutil.rmtree(fixture.home.envs.parent / "uv")
        fixture.environment = dataclasses.replace(fixture.environment, lock=lock)  # as a fork
        await fixture.launch("b.1", SHOWS)
        assert [ended.reason for ended in await fixture.wait_exits("b.1")] == ["finished"]
        fixture.environment = Environment(
            requirements=Digest(fixture.sink.put_blob(f"{first}probe==99\nnothere\n".encode()))
        )
        await fixture.launch("c.1", SHOWS)
        (ended,) = await fixture.wait_exits("c.1")
        assert ended.kind is ExitKind.PREPARE_FAILED
        texts = [
            ended.reason.encode(),
            fixture.sink.blobs[lock],
            *(fixture.sink.stream(f"{name}.1", 0, "events") for name in "abc"),
        ]
        texts += [
            file.read_bytes()
            for file in fixture.home.root.rglob("*")
            if file.is_file() and file.suffix in (".txt", ".log")
        ]
        assert not [text for text in texts if b"INDEXPASSWORD" in text or b"owner" in text]

    try:
        run_scenario(scenario)
    finally:
        index.shutdown()
        index.server_close()


def test_secret_in_requirements_reaches_index_and_no_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    index, home = Index(tmp_path / "wheels"), tmp_path / "home"
    address = index.address.replace("INDEXPASSWORD", "${INDEX_TOKEN}")
    blobs = {
        Digest("1" * 64): f"--index-url {address}\nprobe\n".encode(),
        Digest("2" * 64): f"--index-url {address}\nprobe==99\n".encode(),
    }
    # A secret may have any name. A name that uv itself would read is not passed on.
    secrets = {"INDEX_TOKEN": "INDEXPASSWORD", "UV_OFFLINE": "1", "UV_NO_INDEX": "1"}
    environments = python_environment.Environments(
        home / "cache" / "envs", blobs.__getitem__, lambda _: None, secrets=secrets, user="bob"
    )
    try:
        with ExitStack() as stack:
            result = environments.prepare(Environment(requirements=Digest("1" * 64)), stack, cwd=tmp_path)
            assert (
                result.lock is not None
                and b"probe==1.5" in result.lock
                and b"INDEXPASSWORD" not in result.lock
            )
            with pytest.raises(PrepareFailed) as error:
                environments.prepare(Environment(requirements=Digest("2" * 64)), stack, cwd=tmp_path)
        assert "INDEXPASSWORD" not in error.value.exit.reason
        assert not [
            file
            for file in (home / "cache" / "envs").rglob("*")
            if file.is_file() and not file.is_symlink() and b"INDEXPASSWORD" in file.read_bytes()
        ]
    finally:
        index.shutdown()
        index.server_close()


def test_environment_evicted_before_use_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted: list[Path] = []
    held = python_environment._lock_file

    @contextmanager
    def late(file: Path, how: int) -> Iterator[int]:
        if file.suffix == ".use" and not evicted:
            evicted.append(file.with_suffix(""))
            shutil.rmtree(evicted[0])  # another run's doing, between our build and our lock
        with held(file, how) as descriptor:
            yield descriptor

    monkeypatch.setattr(python_environment, "_lock_file", late)
    environments = python_environment.Environments(tmp_path / "envs", lambda _: b"", lambda _: None)
    with ExitStack() as stack:
        result = environments.prepare(Environment(lock=Digest("0" * 64)), stack, cwd=tmp_path)
        assert result.virtual_env == evicted[0]
        assert Path(result.path).exists()


def test_least_recently_used_environment_is_evicted_unless_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_environment, "MAX_ENVIRONMENTS", 2)
    locks = {Digest(str(number) * 64): f"# {number}".encode() for number in range(4)}
    environments = python_environment.Environments(
        tmp_path / "envs", lambda digest: locks[digest], lambda _: None
    )

    def folder(digest: Digest, stack: ExitStack) -> Path:
        result = environments.prepare(Environment(lock=digest), stack, cwd=tmp_path).virtual_env
        assert result is not None
        return result

    with ExitStack() as long:
        first = folder(Digest("0" * 64), long)
        second, third = (folder(digest, ExitStack()) for digest in list(locks)[1:3])
        os.utime(second / ".ready", (1, 1))
        with ExitStack() as stack:
            assert first.exists()
            assert folder(Digest("3" * 64), stack).exists()
        assert [environment.exists() for environment in (first, second, third)] == [True, False, True]


def test_large_or_old_uv_caches_are_evicted_unless_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = tmp_path / "uv"

    def build(user: str, number: int) -> None:
        remove_tree(tmp_path / "envs")
        environments = python_environment.Environments(
            tmp_path / "envs", lambda _: b"probe", lambda _: None, user=user
        )
        environments.prepare(Environment(requirements=Digest(str(number) * 64)), ExitStack(), cwd=tmp_path)

    build("bob", 0)
    build("alice", 1)
    assert (caches / "users/bob").is_dir() and (caches / "common").is_dir()
    os.utime(caches / "locks/users/bob", (1, 1))
    with python_environment._lock_file(caches / "locks/users/bob", fcntl.LOCK_SH):
        build("alice", 2)
        assert (caches / "users/bob").is_dir(), "in use"
    build("alice", 3)
    assert (
        not (caches / "users/bob").exists()
        and (caches / "users/alice").is_dir()
        and (caches / "common").is_dir()
    )
    monkeypatch.setattr(python_environment, "MAX_CACHE_BYTES", 1)
    build("bob", 4)
    assert [path.name for path in (caches / "users").iterdir()] == ["alice"], (
        "what alice has is measured when she builds"
    )
    assert not (caches / "common").exists()


_BACKEND = """
import pathlib, zipfile

for place in {places}:
    try:
        (pathlib.Path(place) / "poison").write_text("no")
    except OSError:
        pass


def build_wheel(folder, config_settings=None, metadata_directory=None):
    about = "src-1.dist-info"
    files = {{"src.py": "", f"{{about}}/METADATA": "Metadata-Version: 2.1\\nName: src\\nVersion: 1\\n",
             f"{{about}}/RECORD": "",
             f"{{about}}/WHEEL": "Wheel-Version: 1.0\\nGenerator: tests\\n"
                                 "Root-Is-Purelib: true\\nTag: py3-none-any\\n"}}
    with zipfile.ZipFile(pathlib.Path(folder) / "src-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "src-1-py3-none-any.whl"
"""


def _pack_source(folder: Path, backend: str) -> None:
    """Creates the package `src`, which has no wheel."""
    pyproject = (
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\n'
        'name = "src"\nversion = "1"\n'
    )
    with tarfile.open(folder / "src-1.tar.gz", "w:gz") as archive:
        for name, text in (
            ("pyproject.toml", pyproject),
            ("backend.py", backend),
            ("PKG-INFO", "Metadata-Version: 2.1\nName: src\nVersion: 1\n"),
        ):
            about = tarfile.TarInfo(f"src-1/{name}")
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    "settings",
    [
        {"UV_DEFAULT_INDEX": "{index}"},
        {"PIP_INDEX_URL": "{index}"},
        {
            "UV_DEFAULT_INDEX": "{index}",
            "UV_INDEX": "{index}other/ {index}more/",
            "UV_PUBLISH_PASSWORD": "INDEXPASSWORD",
        },
        {
            "UV_DEFAULT_INDEX": "the-lab={plain}",
            "UV_INDEX_THE_LAB_USERNAME": "owner",
            "UV_INDEX_THE_LAB_PASSWORD": "INDEXPASSWORD",
        },
    ],
    ids=["default", "pip", "several", "named"],
)
def test_package_code_sees_no_index_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    seen = tmp_path / "seen"
    looks = (
        f"import os\nwith open({str(seen)!r}, 'a') as file: file.write(repr(dict(os.environ)) + "
        "open('/proc/%d/environ' % os.getppid()).read())\n"
    )
    _pack_source(tmp_path / "wheels", looks + _BACKEND.format(places=[]))
    index = Index(tmp_path / "wheels")
    for name, value in settings.items():
        monkeypatch.setenv(
            name, value.format(index=index.address, plain=index.address.replace("owner:INDEXPASSWORD@", ""))
        )
    environments = python_environment.Environments(
        tmp_path / "cache" / "envs", lambda _: b"src\nprobe\n", lambda _: None, user="bob"
    )
    try:
        with ExitStack() as stack:
            result = environments.prepare(Environment(requirements=Digest("1" * 64)), stack, cwd=tmp_path)
        assert result.lock is not None and b"src==1" in result.lock and b"INDEXPASSWORD" not in result.lock
        assert "UV_CACHE_DIR" in seen.read_text() and "INDEXPASSWORD" not in seen.read_text()
    finally:
        index.shutdown()
        index.server_close()


def test_package_code_cannot_write_shared_caches(tmp_path: Path) -> None:
    if detect_isolation_mode() is IsolationMode.MODES:
        pytest.skip("the kernel allows no mounts here")
    home = tmp_path / "home"
    caches, own = home / "cache", home / "attempts" / "abcdef.1"
    kept = caches / "uv"
    places = [
        home,
        caches,
        caches / "envs",
        kept / "common",
        kept / "users" / "alice",
        kept / "users" / "bob",
    ]
    for folder in (own, *places):
        make_folder(folder)
    _pack_source(tmp_path / "wheels", _BACKEND.format(places=[str(place) for place in places]))

    def folder_of(user: str, lock: bytes) -> Path | None:
        environments = python_environment.Environments(
            caches / "envs", lambda _: lock, lambda _: None, user=user, view=MountView([home], [], [own])
        )
        with ExitStack() as stack:
            return environments.prepare(Environment(lock=Digest("0" * 64)), stack, cwd=own).virtual_env

    with_code = folder_of("bob", b"src==1\n")
    assert {path.parent for path in home.rglob("poison")} == {kept / "users" / "bob"}, (
        "the code ran, and reached the caches of bob alone"
    )
    assert folder_of("alice", b"src==1\n") != with_code
    assert folder_of("alice", b"probe==1.5\n") == folder_of("bob", b"probe==1.5\n")


def test_unsatisfiable_requirements_are_reported_with_resolver_output(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.environment = Environment(requirements=Digest(fixture.sink.put_blob(b"probe==99\n")))
        await fixture.launch("a.1", "print('never')")
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.PREPARE_FAILED
        assert "requirements" in ended.reason
        assert "probe==99" in ended.reason
        assert fixture.sink.stream("a.1", 0, "stdout") == b""

    run_scenario(scenario)


def test_index_without_tls_counts_as_lost_attempt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    index = Index(tmp_path / "wheels")
    requirements = f"--index-url {index.address.replace('http:', 'https:')}\nprobe\n".encode()
    environments = python_environment.Environments(
        tmp_path / "home" / "envs", lambda _: requirements, lambda _: None, user="bob"
    )
    try:
        with ExitStack() as stack, pytest.raises(PrepareFailed) as error:
            environments.prepare(Environment(requirements=Digest("1" * 64)), stack, cwd=tmp_path)
    finally:
        index.shutdown()
        index.server_close()
    assert error.value.exit.kind is ExitKind.LOST
    assert "received corrupt message of type InvalidContentType" in error.value.exit.reason


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        (
            2,
            (
                "error sending request for url (https://index/probe/)\n"
                "  Caused by: invalid peer certificate: UnknownIssuer"
            ),
            ExitKind.LOST,
        ),
        (
            2,
            (
                "error sending request for url (https://index/probe/)\n"
                "  Caused by: received fatal alert: HandshakeFailure"
            ),
            ExitKind.LOST,
        ),
        (
            2,
            (
                "error sending request for url (https://index/probe/)\n"
                "  Caused by: Connection refused (os error 111)"
            ),
            ExitKind.NODE_FAULT,
        ),
        (-9, "error sending request\n  Caused by: invalid peer certificate: Expired", ExitKind.NODE_FAULT),
        (1, "no version of probe==99", ExitKind.PREPARE_FAILED),
    ],
)
def test_uv_output_decides_cause_of_failed_build(code: int, words: str, kind: ExitKind) -> None:
    assert uv_error(code, words).exit == Exit(kind, 125, words)


def test_host_that_only_the_requirements_name_is_not_retried_for_ever() -> None:
    reason = "failed to fetch: `https://misspelt.example/simple/probe/`: dns error"
    assert uv_error(1, reason, own_hosts=["other.example"]).exit.kind is ExitKind.NODE_FAULT
    ended = uv_error(1, reason, own_hosts=["misspelt.example"]).exit
    assert ended.kind is ExitKind.LOST and ended.reason.endswith(
        "the requirements name misspelt.example, which this node cannot reach"
    )
    assert uv_error(1, "No space left on device", own_hosts=["a"]).exit.kind is ExitKind.NODE_FAULT


def test_archive_of_the_code_is_installed(tmp_path: Path) -> None:
    archive = tmp_path / "code" / "dist" / "probe-1.5-py3-none-any.whl"
    archive.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "wheels" / archive.name, archive)
    blobs = {Digest("1" * 64): b"./dist/probe-1.5-py3-none-any.whl\n"}
    environments = python_environment.Environments(
        tmp_path / "home" / "cache" / "envs", blobs.__getitem__, lambda _: None, user="bob"
    )
    with ExitStack() as stack:
        cwd = tmp_path / "code"
        first = environments.prepare(Environment(requirements=Digest("1" * 64)), stack, cwd=cwd)
        assert first.virtual_env is not None and first.lock is not None
        assert list(first.virtual_env.glob("lib/python*/site-packages/probe.py"))
        blobs[Digest("2" * 64)] = first.lock
        of_lock = Environment(lock=Digest("2" * 64))
        assert environments.prepare(of_lock, stack, cwd=cwd).path == first.path
        with zipfile.ZipFile(archive, "a") as wheel:
            wheel.comment = b"other bytes"
        assert environments.prepare(of_lock, stack, cwd=cwd).path != first.path
        with zipfile.ZipFile(archive) as wheel:
            files = {name: wheel.read(name) for name in wheel.namelist()}
        files["probe-1.5.dist-info/METADATA"] += b"Requires-Dist: probe>9\n"
        with zipfile.ZipFile(archive, "w") as wheel:
            for name, data in files.items():
                wheel.writestr(name, data)
        with pytest.raises(PrepareFailed, match="cannot be met"):  # not the former lock
            environments.prepare(Environment(requirements=Digest("1" * 64)), stack, cwd=cwd)
        archive.unlink()
        with pytest.raises(PrepareFailed, match="is not in the packed code"):
            environments.prepare(of_lock, stack, cwd=cwd)


def test_missing_interpreter_is_reported(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.environment = Environment(interpreter="/no/such/python")
        await fixture.launch("a.1", "pass")
        (ended,) = await fixture.wait_exits("a.1")
        assert (ended.kind, ended.reason) == (
            ExitKind.PREPARE_FAILED,
            "the interpreter /no/such/python is not on this node",
        )

    run_scenario(scenario)


def test_versions_of_pyenv_replace_its_shims(tmp_path: Path) -> None:
    root = tmp_path / "pyenv"
    for version in ("2.7.18", "3.9.18", "3.12.1", "3.13.0", "pypy3.10-7.3", "my-project"):
        (root / "versions" / version / "bin").mkdir(parents=True)
    path = os.pathsep.join(("/opt/bin", f"{root}/shims", "/usr/bin"))
    releases = [f"{root}/versions/{version}/bin" for version in ("3.13.0", "3.12.1", "3.9.18")]
    expected = os.pathsep.join(("/opt/bin", *releases, "/usr/bin"))
    assert python_environment.interpreter_path({"PATH": path, "PYENV_ROOT": str(root)}) == expected
    assert python_environment.interpreter_path({"PATH": "/usr/bin", "PYENV_ROOT": str(root)}) == "/usr/bin"


def test_lock_is_parsed_into_packages() -> None:
    lock = (
        b"--index-url https://example.org/simple\nsix==1.17.0\n"
        b"uvicorn[standard]==0.3 ; python_version > '3'\n# via x\n"
    )
    assert locked_packages(lock) == {"six": "1.17.0", "uvicorn": "0.3"}


@pytest.mark.parametrize("option", ["--find-links wheels", "-f ./wheels", "--find-links=wheels"])
def test_packages_of_local_folder_come_from_no_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    index = Index(tmp_path / "empty")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.address)
    blobs = {Digest("1" * 64): f"--no-index\n{option}\nprobe\n".encode()}
    environments = python_environment.Environments(
        tmp_path / "home" / "cache" / "envs", blobs.__getitem__, lambda _: None, user="bob"
    )
    try:
        with ExitStack() as stack:
            result = environments.prepare(Environment(requirements=Digest("1" * 64)), stack, cwd=tmp_path)
            assert result.lock is not None and result.lock.startswith(b"--no-index\n")
            blobs[Digest("2" * 64)] = result.lock
            assert (
                environments.prepare(Environment(lock=Digest("2" * 64)), stack, cwd=tmp_path).path
                == result.path
            )
            shutil.copy(
                tmp_path / "wheels" / "probe-1.5-py3-none-any.whl",
                tmp_path / "wheels" / "other-1.5-py3-none-any.whl",
            )
            assert (
                environments.prepare(Environment(lock=Digest("2" * 64)), stack, cwd=tmp_path).path
                != result.path
            ), "other files, another environment"
    finally:
        index.shutdown()
        index.server_close()
