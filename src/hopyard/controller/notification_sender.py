"""Sends notifications: by webhook, e-mail, or a command of the server's owner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import smtplib
import ssl
import tempfile
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from hopyard.config.notification_settings import (
    CommandTarget,
    Mail,
    MailSecurity,
    MailSettings,
    NotificationSettings,
    Webhook,
)
from hopyard.domain.notification import Message
from hopyard.domain.notification_text import json_body, webhook_body
from hopyard.domain.text import escape
from hopyard.errors import DeliveryFailed, SpecError

TIMEOUT_S = 15.0
_MAX_READ_BYTES = 64 * 1024
_MAX_OUTPUT = 200  # characters of a command's errors


class TargetSender:
    """Implements `hopyard.interfaces.notification_sender.NotificationSender` over the server's settings."""

    def __init__(self, settings: NotificationSettings) -> None:
        self._settings = settings

    async def send(self, to: str, message: Message, /) -> None:
        destination = self._settings.destination(to)
        match destination:
            case Webhook():
                await asyncio.to_thread(_post, destination, message)
            case Mail():
                if self._settings.mail is None:
                    raise SpecError("the server sends no e-mail")
                await asyncio.to_thread(_mail, self._settings.mail, destination.to, message)
            case CommandTarget():
                await _run(destination, message)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to a host that is not allowed."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(webhook: Webhook, message: Message) -> None:
    body = json.dumps(webhook_body(message, webhook.format, at=datetime.now(UTC))).encode()
    request = urllib.request.Request(
        webhook.url, data=body, headers={"Content-Type": "application/json", "User-Agent": "hopyard"}
    )
    host = urlsplit(webhook.url).hostname or ""
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as response:
            response.read(1024)
    except urllib.error.HTTPError as error:
        error.close()
        raise DeliveryFailed(f"{host} answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DeliveryFailed(f"{host}: {reason}") from error


def _mail(settings: MailSettings, to: str, message: Message) -> None:
    mail = EmailMessage()
    # an encoded word would be decoded, and a line break in it would begin another header
    mail["Subject"] = escape(" ".join(message.title.split())).replace("=?", "= ?")
    mail["From"], mail["To"] = settings.sender, to
    mail["Date"], mail["Message-ID"] = format_datetime(datetime.now(UTC)), make_msgid(domain="hopyard")
    mail.set_content(message.plain_text())
    try:
        password = (
            ""
            if settings.password_file is None
            else settings.password_file.read_text().partition("\n")[0].strip()
        )
        context = None if settings.security is MailSecurity.NONE else ssl.create_default_context()
        with (
            smtplib.SMTP_SSL(settings.host, settings.port, timeout=TIMEOUT_S, context=context)
            if settings.security is MailSecurity.TLS
            else smtplib.SMTP(settings.host, settings.port, timeout=TIMEOUT_S)
        ) as connection:
            if settings.security is MailSecurity.STARTTLS:
                connection.starttls(context=context)
            if settings.user:
                connection.login(settings.user, password)
            connection.send_message(mail)
    except (OSError, smtplib.SMTPException) as error:
        raise DeliveryFailed(f"the mail server {settings.host}: {error}") from error


async def _run(command: CommandTarget, message: Message) -> None:
    """The program gets the notification as JSON on stdin, and its parts as variables."""
    body = json_body(message, datetime.now(UTC))
    names = {f"HOPYARD_{key.upper()}": str(value) for key, value in body.items() if key != "fields"}
    program = command.arguments[0]
    # Files, not pipes: uvloop leaves the ends of its pipes open in the program, and one that it starts in the
    # background would keep them.
    with tempfile.TemporaryFile() as sent, tempfile.TemporaryFile() as errors:
        sent.write(json.dumps(body).encode())
        sent.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command.arguments,
                stdin=sent,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **{name: text.replace("\0", " ") for name, text in names.items()}},
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryFailed(f"{program}: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await process.wait()
        except TimeoutError as error:
            raise DeliveryFailed(f"{program} did not end within {TIMEOUT_S:g} s") from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        errors.seek(0)
        output = errors.read(_MAX_READ_BYTES)
    if process.returncode:
        text = " ".join(output.decode("utf-8", "replace").split())[:_MAX_OUTPUT]
        raise DeliveryFailed(f"{program} ended with code {process.returncode}{f': {text}' if text else ''}")
