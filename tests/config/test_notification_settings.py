from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.config.notification_settings import (
    CommandTarget,
    Mail,
    MailSecurity,
    NotificationSettings,
    Webhook,
)
from hopyard.config.settings import read_settings
from hopyard.domain.notification_text import WebhookFormat
from hopyard.errors import SpecError


def read(tmp_path: Path, text: str) -> NotificationSettings:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read_settings(file).notifications


def test_settings_are_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
notifications:
  mail: {host: smtp.lab.org, from: hop@lab.org, security: starttls, user: hop, password_file: smtp.txt}
  targets:
    lab: {webhook: "https://hooks.slack.com/services/x"}
    forced: {webhook: "https://chat.lab.org/x", format: slack}
    oncall: {email: oncall@lab.org}
    desk: {command: [notify-send, Hopyard]}
  webhook_hosts: ["*.lab.org"]
""",
    )
    assert settings.mail is not None
    assert (settings.mail.port, settings.mail.security) == (587, MailSecurity.STARTTLS)
    assert settings.mail.password_file == tmp_path / "smtp.txt"
    assert settings.destination("lab") == Webhook("https://hooks.slack.com/services/x", WebhookFormat.SLACK)
    assert settings.destination("forced") == Webhook("https://chat.lab.org/x", WebhookFormat.SLACK)
    assert settings.destination("oncall") == Mail("oncall@lab.org")
    assert settings.destination("alice@home.org") == Mail("alice@home.org")
    assert settings.destination("desk") == CommandTarget(("notify-send", "Hopyard"))
    assert settings.destination("https://a.lab.org/x") == Webhook("https://a.lab.org/x", WebhookFormat.JSON)
    for refused in ("https://lab.org.evil.com/x", "https://169.254.169.254/x"):
        with pytest.raises(SpecError, match="sends nothing to this host"):
            settings.destination(refused)


def test_without_settings_only_webhooks_are_notified(tmp_path: Path) -> None:
    settings = NotificationSettings()
    assert settings.destination("https://h.org/x") == Webhook("https://h.org/x", WebhookFormat.JSON)
    with pytest.raises(SpecError, match="the server sends no e-mail"):
        settings.destination("a@b.org")
    with pytest.raises(SpecError, match="has no target `lab`"):
        settings.destination("lab")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{mails: {}}", "notifications: there is no key `mails`"),
        ("{mail: {host: h}}", "notifications.mail.from"),
        ("{mail: {host: h, from: x}}", "notifications.mail.from"),
        ("{mail: {host: h, from: a@b.c, security: ssl}}", "notifications.mail.security"),
        ("{mail: {host: h, from: a@b.c, password_file: f}}", "notifications.mail.user"),
        ("{targets: {Lab: {email: a@b.c}}}", "notifications.targets.Lab"),
        ("{targets: {lab: {}}}", "notifications.targets.lab"),
        ("{targets: {lab: {webhook: x}}}", "notifications.targets.lab.webhook"),
        ("{targets: {lab: {webhook: 'http://h/x', format: irc}}}", "notifications.targets.lab.format"),
        ("{targets: {lab: {email: a@b.c}}}", "notifications.targets.lab.email"),
        ("{targets: {lab: {command: ls}}}", "notifications.targets.lab.command"),
        ("{targets: {lab: {command: [1]}}}", "notifications.targets.lab.command"),
        ("{webhook_hosts: [1]}", "notifications.webhook_hosts"),
    ],
)
def test_invalid_settings_name_their_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, f"notifications: {text}\n")
    assert place in caught.value.message
