"""Text of other users never controls a terminal: each command gets responses in which every text is
hostile."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect
from hopyard.cli.command_table import COMMANDS
from hopyard.cli.main import main
from hopyard.config.home import Home
from tests.cli.conftest import shell_in

HOSTILE = (
    "\x1b[8m\x1b]52;c;QUJD\x07\u202e\u200b\ufe0f\r\x9b2J\u2028"
    + "\nroot/prod/7  succeeded"
    + "\u0301" * 100
    + "x" * 300
)
FORGED = "root/prod/7"
# Values that programs compare or compute with; all other values of a response are text of users.
_FIXED = re.compile(r"[0-9a-f]{64}|\d{4}-\d\d-\d\dT\S+|/.*|http://\S+|\S+/\S+/\d+", re.S)
_CODED = frozenset(
    [
        "id",
        "phase",
        "kind",
        "level",
        "outcome",
        "parallel",
        "mode",
        "goal",
        "status",
        "state",
        "trial",
        "run",
        "attempt",
        "rule",
        "stream",
        "digest",
        "scopes",
        "next",
    ]
)
_CODED |= {
    "path",
    "target",
    "forked_from",
    "parent",
    "worker",
    "type",
    "node",
    "engine",
    "event",
    "verdict",
    "continues",
}
_ACTING = re.compile(
    ".{0,40}(?:[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069]|\u0301{9}).{0,20}"
)
_MAPPINGS = frozenset(
    [
        "params",
        "tags",
        "latest",
        "summary",
        "metrics",
        "env",
        "packages",
        "labels",
        "series",
        "extras",
        "machine_env",
        "detail",
        "options",
        "values",
    ]
)


def make_hostile(value: Any, key: str = "") -> Any:
    """Returns the response with every text of users replaced by a hostile one, including names of metrics,
    parameters and tags."""
    if isinstance(value, dict):
        result = {
            name: make_hostile(inner, "" if key in _MAPPINGS else name) for name, inner in value.items()
        }
        return {name + HOSTILE: inner for name, inner in result.items()} if key in _MAPPINGS else result
    if isinstance(value, list):
        return [make_hostile(inner, key) for inner in value]
    if isinstance(value, str) and key not in _CODED and not _FIXED.fullmatch(value):
        return value + HOSTILE
    return value


@contextmanager
def hostile_server(real: Client) -> Iterator[str]:
    """The URL of a proxy that makes the texts of responses hostile."""
    host, port = real.url.removeprefix("http://").split(":")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("host", "connection")
            }
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            data, kind = answer.read(), answer.headers.get("Content-Type", "")
            connection.close()
            if data and kind.startswith("application/json"):
                data = json.dumps(make_hostile(json.loads(data))).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in (
                    "content-length",
                    "connection",
                    "transfer-encoding",
                    "date",
                    "server",
                ):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Replaces stdout and stderr by a terminal and returns what it received."""
    master, slave = pty.openpty()
    received: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                received.append(data)
        except OSError:  # the other end was closed
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with monkeypatch.context() as patched, open(slave, "w", encoding="utf-8") as screen:
        patched.setenv("TERM", "xterm")
        patched.delenv("NO_COLOR", raising=False)
        patched.setattr(sys, "stdout", screen)
        patched.setattr(sys, "stderr", screen)
        yield received
        screen.flush()
    reader.join(10)
    os.close(master)


def terminal_controls(text: str) -> list[str]:
    """Returns terminal controls in the output other than own colours, and forged rows."""
    lines = re.sub(r"\x1b\[(?:0|1|2|3[1-6])m|\r\x1b\[2?K", "", text).replace("\r\n", "\n").split("\n")
    return [result[0] for line in lines for result in [_ACTING.search(line)] if result] + [
        line for line in lines if line.startswith(FORGED)
    ]


@pytest.fixture(scope="module")
def items_by_listing(served_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One item of every listing."""
    shell = shell_in(tmp_path_factory.mktemp("hostile") / "study", served_home)
    shell.write(
        "t.py",
        "import hopyard as hop\np = hop.params(lr=0.1)\nhop.log(loss=p.lr, step=1)\nhop.save(1)\n"
        "hop.log(m=hop.Text('a'))\n"
        "hop.summary(loss=p.lr)\nprint('done')\n",
    )
    shell.write(
        "s.yaml",
        "{name: s, script: t.py, metric: loss, goal: min, searcher: grid, space: {lr: [0.1, 0.2]}, "
        "resources: {cpus: 0.25}}",
    )
    shell.write("data/x.csv", "a\n1\n")
    assert shell.hop("dataset", "push", "texts", "data", "-m", "a message", "--metric", "loss").code == 0
    created = {
        "run": shell.hop(
            "run", "--json", "-d", "texts", "-n", "label", "--tag", "k=v", "-e", "K=V", "t.py"
        ).json["name"]
    }
    assert shell.hop("update", created["run"], "--note", "a note").code == 0
    failed = shell.hop("run", "--json", "--", sys.executable, "-c", "raise ValueError('text')").json
    created["other"], created["failed"] = failed["name"], failed["name"]
    created["fork"] = shell.hop("fork", created["run"], "--json").json["run"]["name"]
    assert shell.hop("search", "s.yaml", "-n", "study").code == 0
    created["study"] = shell.hop("search", "show", "--json", "study").json["study"]
    created["waits"] = shell.detach("--cpus", "4", "--", "sleep", "100")
    created["behind"] = shell.detach("--cpus", "4", "--", "true")
    client = connect(start=False, home=Home(served_home))
    created["report"] = client.create_report(
        {"title": "t", "blocks": [{"type": "text", "text": "a"}, {"type": "table", "title": "b"}]}
    )["id"]
    for words in (
        ("secret", "set", "NAME"),
        ("token", "create", "ci"),
        ("dataset", "describe", "texts", "a description"),
        ("user", "add", "bob"),
        ("reserve", "exam", "--from", "+2h", "--for", "1h", "--nodes", "box", "--user", "bob"),
    ):
        result = shell.hop(*words, stdin="value\n")
        assert result.code == 0, result.stderr_text
    return created


LISTINGS = [
    *(
        ("ps", "-a"),
        ("ps", "-a", "--trials"),
        ("info", "{run}"),
        ("info", "{fork}"),
        ("info", "{failed}"),
        ("info", "{behind}"),
        ("info", "{study}"),
    ),
    *(
        ("checkpoint", "ls", "{run}"),
        ("plot", "{run}"),
        ("plot", "{run}", "nope"),
        ("diff", "{run}", "{other}"),
        ("lineage", "{fork}"),
        ("lineage", "{study}"),
        ("why", "{behind}"),
        ("why", "{run}"),
        ("logs", "{other}"),
        ("logs", "{run}"),
    ),
    *(
        ("board", "texts"),
        ("dataset", "ls"),
        ("dataset", "info", "texts"),
        ("dataset", "describe", "texts"),
        ("dataset", "versions", "texts"),
        ("dataset", "board", "texts"),
    ),
    *(
        ("search", "ls", "-a"),
        ("search", "show", "{study}"),
        ("search", "show", "{study}", "--trial", "0"),
        ("search", "gantt", "{study}"),
    ),
    *(
        ("queue", "ls"),
        ("queue", "info", "default"),
        ("queue", "waiting"),
        ("timeline",),
        ("timeline", "--queue", "nothing"),
        ("node", "gpus"),
        ("node", "ls"),
        ("node", "info", "box"),
        ("pool", "ls"),
        ("reserve", "ls"),
        ("reserve", "info", "exam"),
    ),
    *(
        ("usage",),
        ("usage", "--by", "user,queue,project"),
        ("audit",),
        ("audit", "--refused"),
        ("user", "ls"),
        ("secret", "ls"),
        ("token", "list"),
        ("session", "list"),
        ("token",),
        ("status",),
        ("doctor",),
        ("doctor", "--node"),
    ),
    *(
        ("files", "{run}"),
        ("media", "{run}"),
        ("media", "{run}", "*"),
        ("media", "{run}", "m"),
        ("port", "{run}"),
        ("port", "{run}", "8888"),
        ("notebook", "{run}"),
        ("exec", "{run}", "true"),
        ("tensorboard", "nothing-like-it"),
        ("visdom", "--python", "nothing-like-it"),
        ("repl", "{run}", "-c", "1"),
        ("shell", "{run}"),
        ("info", "nothing-like-it"),
        ("events", "--run", "nothing-like-it"),
        ("inbox", "--user", "nothing-like-it"),
        ("dataset", "info", "nothing-like-it"),
        ("reserve", "info", "nothing"),
        ("report", "ls"),
        ("report", "show", "{report}"),
        ("report", "show", "nothing"),
        ("ui", "--print"),
        ("queue", "info", "nothing"),
        ("stop", "{failed}"),
        ("pause", "{failed}"),
        ("alert", "x", "--run", "{failed}"),
        ("set", "{failed}", "lr=1"),
        ("update", "{behind}", "--note", "x"),
    ),
    *(
        ("run", "--detach", "--", "true"),
        ("fork", "{failed}", "--detach"),
        ("evaluate", "{failed}", "--detach", "true"),
        ("resume", "{failed}", "--detach"),
        ("search", "run", "s.yaml", "--detach"),
    ),
]
AS_TABLE = [("usage", "--csv"), ("audit", "--csv"), ("queue", "export")]
WITHOUT_JSON = frozenset(
    [
        ("port", "{run}", "8888"),
        ("exec", "{run}", "true"),
        ("repl", "{run}", "-c", "1"),
        ("shell", "{run}"),
        ("logs", "{other}"),
        ("logs", "{run}"),
        ("update", "{behind}", "--note", "x"),
        ("stop", "{failed}"),
    ]
)
ABOUT_THIS_MACHINE = {"up", "down", "service", "backup", "restore", "sync", "help", "simulate", "completion"}
WRITES_FILES = {"pull", "rm", "examples"}  # and name runs alone, or files of this package


def test_every_command_is_covered() -> None:
    assert {entry.name for entry in COMMANDS} == {
        listing[0] for listing in LISTINGS
    } | ABOUT_THIS_MACHINE | WRITES_FILES


def test_no_command_prints_raw_text_of_other_users(
    items_by_listing: dict[str, str],
    client: Client,
    served_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        "{name: s, script: t.py, metric: loss, goal: min, searcher: grid, space: {lr: [0.1, 0.2]}}"
    )
    (tmp_path / "t.py").write_text("")
    monkeypatch.setenv("HOPYARD_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("HOPYARD_TOKEN", client.token)
    wrong = list[str]()
    with hostile_server(client) as url:
        monkeypatch.setenv("HOPYARD_URL", url)
        for listing in (*LISTINGS, *AS_TABLE):
            words = [word.format(**items_by_listing) for word in listing]
            ways = [words] if listing in WITHOUT_JSON or listing in AS_TABLE else [words, [*words, "--json"]]
            for way in ways:
                capfd.readouterr()
                code = main(way)
                out, err = capfd.readouterr()
                if "internal error of hop" in err:
                    wrong.append(f"{way}: {err}")
                if "--json" in way and out and code == 0:
                    json.loads(out)
                if "--csv" not in way:  # CSV for a program is data
                    wrong += [
                        f"{way} (piped): {line[:300]!r}" for line in terminal_controls(out + "\n" + err)[:1]
                    ]
                if "--json" in way:
                    continue  # the same on a terminal
                with on_a_terminal(monkeypatch) as received:
                    main(way)
                wrong += [
                    f"{way} (terminal): {line[:300]!r}"
                    for line in terminal_controls(b"".join(received).decode(errors="backslashreplace"))[:1]
                ]
    assert not wrong, "\n".join(wrong)
