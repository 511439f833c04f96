"""Notifications reach a real HTTP receiver, a real mail server and a program."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
import uvloop
from aiosmtpd.smtp import SMTP, AuthResult

from hopyard.config.notification_settings import (
    CommandTarget,
    MailSecurity,
    MailSettings,
    NotificationSettings,
    Webhook,
)
from hopyard.controller.notification_sender import TargetSender
from hopyard.domain.notification import AlertLevel, Message, NotifyOn
from hopyard.domain.notification_text import WebhookFormat
from hopyard.errors import DeliveryFailed

MESSAGE = Message("a/b/1 failed", "no data", AlertLevel.ERROR, "a/b/1", NotifyOn.FAILED, {"loss": "0.5"})

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    received: list[tuple[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.path, body))
            self.send_response({"/refuse": 403, "/elsewhere": 302}.get(self.path, 204))
            self.send_header("Location", "/followed")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


async def test_webhook_gets_the_message(receiver: tuple[str, list[tuple[str, Any]]]) -> None:
    url, received = receiver
    sender = TargetSender(NotificationSettings(targets={"lab": Webhook(f"{url}/lab", WebhookFormat.SLACK)}))
    await sender.send(f"{url}/own", MESSAGE)
    await sender.send("lab", MESSAGE)
    assert [path for path, _ in received] == ["/own", "/lab"]
    assert received[0][1]["fields"] == {"loss": "0.5"}
    assert received[1][1]["attachments"][0]["title"] == "a/b/1 failed"


async def test_refusal_and_redirect_of_a_webhook_are_failures(
    receiver: tuple[str, list[tuple[str, Any]]],
) -> None:
    url, received = receiver
    sender = TargetSender(NotificationSettings())
    with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1 answered 403"):
        await sender.send(f"{url}/refuse", MESSAGE)
    with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1 answered 302"):
        await sender.send(f"{url}/elsewhere", MESSAGE)
    assert [path for path, _ in received] == ["/refuse", "/elsewhere"]
    with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1: "):
        await sender.send("http://127.0.0.1:1/x", MESSAGE)


async def test_mail_server_gets_the_message() -> None:
    mails: list[Any] = []

    class Inbox:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
            mails.append(envelope)
            return "250 OK"

    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(Inbox(), hostname="mail", loop=asyncio.get_running_loop()), "127.0.0.1", 0
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = NotificationSettings(MailSettings("127.0.0.1", port, "hop@lab.org"))
        await TargetSender(settings).send("alice@lab.org", MESSAGE)
        word = replace(MESSAGE, title="a/b/1: =?utf-8?q?x=0D=0ABcc:_eve@lab.org?=")
        await TargetSender(settings).send("alice@lab.org", word)
    with pytest.raises(DeliveryFailed, match=r"the mail server 127\.0\.0\.1: "):
        await TargetSender(settings).send("alice@lab.org", MESSAGE)
    mail, other = mails
    content = message_from_bytes(mail.content)
    assert (mail.mail_from, mail.rcpt_tos) == ("hop@lab.org", ["alice@lab.org"])
    assert content["Subject"] == "a/b/1 failed"
    assert content.get_payload() == "no data\r\nloss: 0.5\r\n"
    assert message_from_bytes(other.content).keys() == content.keys(), "a title adds no header"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    words = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=mail -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*words.split(), "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize("security", [MailSecurity.STARTTLS, MailSecurity.TLS])
async def test_mail_server_with_tls_and_a_password_gets_the_message(
    certificate: tuple[Path, Path], security: MailSecurity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails: list[Any] = []

    class Inbox:
        async def handle_DATA(self, _server: Any, session: Any, envelope: Any) -> str:
            mails.append((session.auth_data, envelope.rcpt_tos))
            return "250 OK"

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: Any, data: Any) -> AuthResult:
        is_right = (data.login, data.password) == (b"hop", b"secret word")
        return AuthResult(success=is_right, handled=False, auth_data=data.login)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    loop, inside = asyncio.get_running_loop(), security is MailSecurity.TLS
    options: dict[str, Any] = {} if inside else {"tls_context": context, "require_starttls": True}
    server = await loop.create_server(
        lambda: SMTP(
            Inbox(), hostname="mail", loop=loop, authenticator=authenticate, auth_required=True,
            auth_require_tls=not inside, **options,
        ),
        "127.0.0.1", 0, ssl=context if inside else None,
    )  # fmt: skip
    password = tmp_path / "smtp.txt"
    password.write_text("secret word\n")
    async with server:
        port = server.sockets[0].getsockname()[1]
        mail = MailSettings("127.0.0.1", port, "hop@lab.org", security, "hop", password)
        sender = TargetSender(NotificationSettings(mail))
        with pytest.raises(DeliveryFailed, match="certificate verify failed"):
            await sender.send("alice@lab.org", MESSAGE)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        await sender.send("alice@lab.org", MESSAGE)
        password.write_text("wrong\n")
        with pytest.raises(DeliveryFailed, match="Authentication"):
            await sender.send("alice@lab.org", MESSAGE)
    assert mails == [(b"hop", ["alice@lab.org"])]


async def test_command_gets_the_message(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = NotificationSettings(
        targets={
            "desk": CommandTarget(("sh", "-c", f'cat >"{out}"; printf " %s" "$HOPYARD_EVENT" >>"{out}"')),
            "broken": CommandTarget(("sh", "-c", "echo no display >&2; exit 3")),
            "missing": CommandTarget((str(tmp_path / "none"),)),
        }
    )
    await TargetSender(settings).send("desk", MESSAGE)
    text, _, event = out.read_text().rpartition(" ")
    assert (json.loads(text)["text"], event) == ("no data", "failed")
    with pytest.raises(DeliveryFailed, match="ended with code 3: no display"):
        await TargetSender(settings).send("broken", MESSAGE)
    with pytest.raises(DeliveryFailed, match="No such file"):
        await TargetSender(settings).send("missing", MESSAGE)


def test_command_may_leave_a_program_in_the_background(tmp_path: Path) -> None:
    """In the event loop of a server."""
    script = f'sleep 600 </dev/null >/dev/null 2>&1 & echo $! >"{tmp_path}/pid"'
    settings = NotificationSettings(targets={"player": CommandTarget(("sh", "-c", script))})
    try:
        uvloop.run(TargetSender(settings).send("player", MESSAGE))
        assert psutil.pid_exists(int((tmp_path / "pid").read_text()))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
