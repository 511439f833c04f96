"""Code from a git repository, from a real git server with TLS on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from blake3 import blake3

from hopyard.config.git_settings import GitSettings
from hopyard.config.home import Home
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import Manifest
from hopyard.private_files import make_folder
from tests.server.api_server import TOKEN, ApiServer, run_scenario
from tests.server.test_server_process import server, wait_until
from tests.server.test_stream_followers import listening_port
from tests.small_disk import small_disk

ENVIRONMENT = {
    **os.environ,
    **{f"GIT_{role}_{field}": "t@t" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": os.devnull,
}


class _Backend(BaseHTTPRequestHandler):
    """Passes requests to `git http-backend`. `/moved` redirects. on_listed: called once, after the first list
    of branches."""

    root = ""
    on_listed: ClassVar[list[Callable[[], object]]] = []

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.path.replace("/moved", "/code", 1))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        result = subprocess.run(
            ["git", "http-backend"],
            input=body,
            env={
                **ENVIRONMENT,
                "GIT_PROJECT_ROOT": self.root,
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            },
            capture_output=True,
            check=False,
        )
        head, _, content = result.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().splitlines()]
        status = next((value for name, value in lines if name == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, value in lines:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if b"ls-refs" in body and self.on_listed:
            self.on_listed.pop()()
        self.wfile.write(content)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        return


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The folder of a repository with what might attack a server."""
    folder = tmp_path / "repositories" / "code"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "kept.bin").write_bytes(b"tracked although ignored")
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / ".gitattributes").write_text("*.py filter=evil\n*.psd filter=lfs\n")
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "back\\slash.txt").write_text("a name that no tree holds")
    (folder / "id_rsa").write_text("a key")
    (folder / "image.psd").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n"
    )
    (folder / ".gitmodules").write_text('[submodule "sub"]\n path = sub\n url = file:///etc\n')
    git(folder, "add", "-A", "-f")
    git(folder, "update-index", "--add", "--cacheinfo", "160000", "1" * 40, "sub")
    git(folder, "commit", "-qm", "first")
    git(folder, "branch", "other")
    git(folder, "tag", "folder", "HEAD^{tree}")
    (folder.parent / "empty").mkdir()
    git(folder.parent / "empty", "init", "-q", "-b", "main")
    (folder.parent / "bomb").mkdir()
    (folder.parent / "bomb" / "zeros").write_bytes(bytes(2**20))
    git(folder.parent / "bomb", "init", "-q", "-b", "main")
    git(folder.parent / "bomb", "add", "zeros")
    git(folder.parent / "bomb", "commit", "-qm", "first")
    return folder


@pytest.fixture
def origin(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))  # the server's environment does not reach git
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = type("Backend", (_Backend,), {"root": str(repository.parent)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_repository_becomes_the_code_of_a_run(tmp_path: Path, repository: Path, origin: str) -> None:
    async def scenario(api: ApiServer) -> None:
        object.__setattr__(api.services, "git", GitSettings(hosts=(origin,)))
        found = await api.request("POST", "/code/git", {"address": f"{origin}/code"})
        assert found["git"]["commit"] == git(repository, "rev-parse", "HEAD")
        assert (found["git"]["remote"], found["submodules"]) == (f"{origin}/code", ["sub"])
        manifest = Manifest.decode(await api.services.blobs.get(found["code"]))
        paths = {file.path for file in manifest.files}
        assert {"train.py", "kept.bin"} <= paths and "passwd" not in paths and not manifest.links
        assert not any(path.startswith(".git/") for path in paths) and not (tmp_path / "trace").exists()
        other = await api.request("POST", "/code/git", {"address": f"{origin}/code", "ref": "other"})
        assert (other["code"], other["git"]["branch"]) == (found["code"], "other")
        composed = await api.request(
            "POST",
            "/runs/compose",
            {"file": "roles: [{command: train.py}]", "code": found["code"], "git": found["git"]},
        )
        run = await api.request("POST", "/runs", {"spec": composed["spec"]})
        assert run["spec"]["git"]["commit"] == found["git"]["commit"]
        records = (await api.request("GET", "/audit"))["records"]
        assert [record["action"] for record in records].count("code.fetch") == 2

    run_scenario(tmp_path, scenario)


def test_addresses_and_repositories_that_are_refused(tmp_path: Path, origin: str) -> None:
    async def scenario(api: ApiServer) -> None:
        allowed = GitSettings(hosts=(origin, "ssh://127.0.0.1:9"))
        object.__setattr__(api.services, "git", allowed)
        for address, ref, status, text in (
            ("https://127.0.0.1:1/code", "", 403, "fetches no code from"),
            ("file:///etc", "", 400, "not the address"),
            ("/etc", "", 400, "not the address"),
            ("ext::sh -c id", "", 400, "not the address"),
            ("http://127.0.0.1/x", "", 400, "not supported"),
            (f"{origin.replace('https://', 'https://u:p@')}/code", "", 400, "password"),
            (f"{origin}/../code", "", 400, "characters"),
            (f"{origin}/--upload-pack=id", "", 400, "characters"),
            ("ssh://-oProxyCommand=id/x", "", 400, "characters"),
            (f"{origin}/code", "--upload-pack=id", 400, "not a branch"),
            (f"{origin}/code", "nothing", 400, "no such branch"),
            (f"{origin}/code", "abc1234", 400, "no such branch"),
            (f"{origin}/code", "1" * 40, 400, "no such commit"),
            (f"{origin}/code", "folder", 400, "no commit, but a folder"),
            (f"{origin}/empty", "", 400, "it is empty"),
            (f"{origin}/absent", "", 400, "cannot be fetched"),
            (f"{origin}/moved", "", 400, "cannot be fetched"),
            ("ssh://127.0.0.1:9/code", "", 400, "cannot be fetched"),
        ):
            response = await api.request("POST", "/code/git", {"address": address, "ref": ref}, status=status)
            assert text in response["error"]["message"], response
            assert response["error"]["hints"]
        object.__setattr__(api.services, "git", replace(allowed, max_bytes=20))
        large = await api.request("POST", "/code/git", {"address": f"{origin}/code"}, status=400)
        assert "address: the repository is larger than 20 B" in large["error"]["message"]
        object.__setattr__(api.services, "git", replace(allowed, max_bytes=100_000))
        packed_well = await api.request("POST", "/code/git", {"address": f"{origin}/bomb"}, status=400)
        assert "1 files of 1.0 MiB" in packed_well["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_server_process_names_what_it_leaves_out(
    tmp_path: Path, repository: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real server: its event loop is another one than that of the other tests."""
    home = Home(tmp_path / "home").create()
    home.settings_file.write_text(f"git: {{hosts: ['{origin}']}}\n")
    with server(home) as (_, client):
        found = client.fetch_git_code({"address": f"{origin}/code", "ref": ""})
        assert found["git"]["commit"] == git(repository, "rev-parse", "HEAD")
        assert found["left_out"] == [
            {"path": "back\\slash.txt", "reason": "it holds a backslash"},
            {"path": "id_rsa", "reason": "left out by default"},
            {"path": "passwd", "reason": "a link out of the code"},
        ]
        assert (found["submodules"], found["lfs_pointers"]) == (["sub"], ["image.psd"])
        commit = found["git"]["commit"]
        assert client.fetch_git_code({"address": f"{origin}/code", "ref": commit})["git"]["branch"] == ""
        assert not list(home.scratch.iterdir())


def test_branch_that_moves_during_the_fetch_is_fetched_again(
    tmp_path: Path, repository: Path, origin: str
) -> None:
    def move() -> None:
        git(repository, "checkout", "-q", "main")
        git(repository, "branch", "-D", "other")
        git(repository, "tag", "-d", "folder")
        git(repository, "commit", "-q", "--amend", "-m", "moved")
        git(repository, "reflog", "expire", "--expire=now", "--all")
        git(repository, "gc", "-q", "--prune=now")

    async def scenario(api: ApiServer) -> None:
        object.__setattr__(api.services, "git", GitSettings(hosts=(origin,)))
        before = git(repository, "rev-parse", "main")
        _Backend.on_listed.append(move)
        found = await api.request("POST", "/code/git", {"address": f"{origin}/code", "ref": "main"})
        assert found["git"]["commit"] == git(repository, "rev-parse", "main") != before

    run_scenario(tmp_path, scenario)


def test_repository_on_a_full_disk_is_refused_and_leaves_nothing(
    tmp_path: Path, repository: Path, origin: str
) -> None:
    (repository / "weights").write_bytes(os.urandom(3 * 2**20))
    git(repository, "add", "-f", "weights")
    git(repository, "commit", "-qm", "weights")

    async def scenario(api: ApiServer) -> None:
        object.__setattr__(api.services, "git", GitSettings(hosts=(origin,)))
        scratch = make_folder(Home(Path(api.services.home)).scratch)
        with small_disk(scratch, 2 * 2**20):
            response = await api.request("POST", "/code/git", {"address": f"{origin}/code"}, status=507)
            assert response["error"]["code"] == "storage_full" and response["error"]["hints"]
            assert not list(scratch.iterdir())

    run_scenario(tmp_path, scenario)


def test_repository_beyond_the_quota_is_not_stored(tmp_path: Path, repository: Path, origin: str) -> None:
    (repository / "weights").write_bytes(data := os.urandom(3 * 2**20))
    git(repository, "add", "-f", "weights")
    git(repository, "commit", "-qm", "weights")

    async def scenario(api: ApiServer) -> None:
        object.__setattr__(api.services, "git", GitSettings(hosts=(origin,)))
        response = await api.request("POST", "/code/git", {"address": f"{origin}/code"}, status=507)
        assert "this upload adds" in response["error"]["message"]
        digest = Digest(blake3(data).hexdigest())
        assert await api.services.blobs.find_missing([digest]) == [digest]
        await api.request("POST", "/code/git", {"address": f"{origin}/code", "ref": "other"})

    run_scenario(tmp_path, scenario, quota_bytes=2 * 2**20)


FETCH = """
import asyncio, sys
from pathlib import Path
from hopyard.config.git_settings import GitSettings
from hopyard.domain.git_address import parse_git_address
from hopyard.server.git_code import fetch_git_code
asyncio.run(fetch_git_code(Path(sys.argv[1]), parse_git_address(sys.argv[2]), "", GitSettings()))
"""


@pytest.fixture
def silent_origin() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"https://127.0.0.1:{server.getsockname()[1]}"


def fetching(origin: str) -> Sequence[psutil.Process]:
    """Returns the processes of git that fetch from the server."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word.startswith(origin) for word in process.info["cmdline"] or ())
        and "git" in process.info["cmdline"][0]
    ]


def test_slow_fetch_delays_nothing_else_and_ends_with_its_client(
    tmp_path: Path, silent_origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    async def scenario(api: ApiServer) -> None:
        object.__setattr__(api.services, "git", GitSettings(hosts=(silent_origin,)))
        body = json.dumps({"address": f"{silent_origin}/code"})
        async with listening_port(api) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /api/v1/code/git HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n{body}".encode())
            await asyncio.to_thread(wait_until, lambda: fetching(silent_origin))
            async with asyncio.timeout(60):
                await api.request("POST", "/blobs/missing", {"digests": ["0" * 64]})
                await api.put_tree({"a": b"a"})
            writer.close()
            await asyncio.to_thread(wait_until, lambda: not fetching(silent_origin))

    run_scenario(tmp_path, scenario)


def test_repository_that_is_too_slow_is_refused(
    tmp_path: Path, silent_origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    async def scenario(api: ApiServer) -> None:
        object.__setattr__(api.services, "git", GitSettings(hosts=(silent_origin,), timeout_s=1.0))
        response = await api.request("POST", "/code/git", {"address": f"{silent_origin}/code"}, status=400)
        assert "was not fetched within 1 s" in response["error"]["message"]
        assert not fetching(silent_origin) and not list(Home(Path(api.services.home)).scratch.iterdir())

    run_scenario(tmp_path, scenario)


def test_fetch_ends_with_a_killed_server(tmp_path: Path, silent_origin: str) -> None:
    words = [sys.executable, "-c", FETCH, str(tmp_path), f"{silent_origin}/code"]
    with subprocess.Popen(words, env={**os.environ, "NO_PROXY": "127.0.0.1"}) as process:
        wait_until(lambda: fetching(silent_origin))
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not fetching(silent_origin))
