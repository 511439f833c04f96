"""`hop ui`: the link, for the server of this machine and for another one."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from hopyard.api_client.local_server import stop_server
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell


def log_in(link: str) -> tuple[HTTPResponse, dict[str, object]]:
    """Sends the secret of a link as the page does."""
    parts = urlsplit(link)
    assert parts.path == "/login" and parts.port is not None
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    body = json.dumps({"link": parse_qs(parts.query)["link"][0]})
    connection.request(
        "POST", "/api/v1/session", body, {"Origin": f"http://{parts.netloc}", "Content-Type": "text/plain"}
    )
    response = connection.getresponse()
    return response, json.loads(response.read())


def test_link_starts_the_server_and_logs_in_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    shell = shell_in(tmp_path / "study", home.root)
    try:
        printed = shell.hop("ui", "--print")
        assert printed.code == 0, printed.stderr_text
        response, session = log_in(printed.text.strip())
        assert response.status == 201 and session["owner"] is True
        assert "HttpOnly" in str(response.getheader("Set-Cookie"))
        assert log_in(printed.text.strip())[0].status == 401
        url = shell.hop("status", "--json").json["url"]
        assert f"web UI: {url}/" in shell.hop("up").stderr_text
        audit = shell.hop("audit", "--action", "session.create", "--json").json
        assert sorted(record["outcome"] for record in audit) == ["done", "refused"]
    finally:
        stop_server(home, runs="stop")


def test_link_of_another_server_has_the_rights_of_its_token(shell: Shell, tmp_path: Path) -> None:
    url = shell.hop("status", "--json").json["url"].replace("127.0.0.1", "localhost")
    token = shell.hop("token", "create", "page", "--scope", "read", "--json").json["token"]
    far = shell_in(tmp_path / "far", tmp_path / "none")
    remote = Shell(far.folder, far.environment | {"HOPYARD_URL": url, "HOPYARD_TOKEN": token})
    link = remote.hop("ui", "--json").json
    assert link["url"] == f"{url}/" and link["link"].startswith(f"{url}/login?link=")
    response, session = log_in(link["link"])
    assert (response.status, session["scopes"]) == (201, ["read"])
    assert not (tmp_path / "none").exists(), "no server is started"
    revoked = shell.hop("token", "revoke", "page")
    assert revoked.code == 0, revoked.stderr_text
    refused = remote.hop("ui", "--print")
    assert (refused.code, refused.out) == (2, b"") and "unknown token" in refused.stderr_text
