"""What notifications say, and the bodies that chat services accept. Pure.

Formats: Slack's incoming webhooks with attachments, Discord's webhooks with embeds, adaptive cards of
Microsoft Teams, and JSON of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from hopyard.domain.duration_text import format_duration
from hopyard.domain.notification import Alert, AlertLevel, Message, NotifyOn
from hopyard.domain.run import Run, RunPhase
from hopyard.domain.text import escape
from hopyard.domain.urls import is_loopback_url

_MAX_METRICS = 8
_MAX_FIELD = 1000  # characters
_MAX_REASON = 1500
_COLOURS = {AlertLevel.INFO: 0x2E7D32, AlertLevel.WARNING: 0xF9A825, AlertLevel.ERROR: 0xC62828}
_SLACK_MARKS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class WebhookFormat(StrEnum):
    SLACK = "slack"
    DISCORD = "discord"
    TEAMS = "teams"
    JSON = "json"


_HOST_FORMATS = {
    "hooks.slack.com": WebhookFormat.SLACK,
    "discord.com": WebhookFormat.DISCORD,
    "discordapp.com": WebhookFormat.DISCORD,
}
_TEAMS_DOMAINS = (".webhook.office.com", ".logic.azure.com", ".powerplatform.com")


def end_message(run: Run, *, reason: str, metrics: Mapping[str, float], url: str) -> Message:
    """Returns the notification of a run that has ended. reason: why it failed; "" for none. metrics: their
    last values."""
    phase = NotifyOn(run.phase.value)
    level = AlertLevel.ERROR if run.phase is RunPhase.FAILED else AlertLevel.INFO
    fields: dict[str, str] = {}
    if run.spec.label:
        fields["name"] = run.spec.label
    if run.started_at is not None and run.ended_at is not None:
        fields["ran for"] = format_duration((run.ended_at - run.started_at).total_seconds())
    fields |= {escape(name): f"{value:.6g}" for name, value in islice(metrics.items(), _MAX_METRICS)}
    return Message(
        title=f"{run.name} {run.phase}",
        text=_shorten(reason, _MAX_REASON),
        level=level,
        run=str(run.name),
        event=phase,
        fields=fields,
        url=url,
    )


def alert_message(run: Run, alert: Alert, *, url: str) -> Message:
    """Returns the notification of an alert."""
    fields = {"name": run.spec.label} if run.spec.label else {}
    return Message(
        title=f"{run.name}: {alert.title or alert.level.value}",
        text=alert.text,
        level=alert.level,
        run=str(run.name),
        event=NotifyOn.ALERT,
        fields=fields,
        url=url,
    )


def format_of(url: str) -> WebhookFormat:
    """Returns the format that the service of an address accepts."""
    host = (urlsplit(url).hostname or "").lower()
    if host.endswith(_TEAMS_DOMAINS):
        return WebhookFormat.TEAMS
    return _HOST_FORMATS.get(host, WebhookFormat.JSON)


def webhook_body(message: Message, format_: WebhookFormat, *, at: datetime) -> dict[str, Any]:
    """Returns the body of the request, as JSON. at: when it is sent.

    A message of a chat service has no link to an address of this machine: its readers use other machines, and
    some services refuse such a message.
    """
    if format_ is not WebhookFormat.JSON and is_loopback_url(message.url):
        message = replace(message, url="")
    return _BODIES[format_](message, at)


def json_body(message: Message, at: datetime) -> dict[str, Any]:
    """Returns a notification in the format of our own, which commands get, too."""
    return {
        "event": message.event.value,
        "run": message.run,
        "level": message.level.value,
        "title": message.title,
        "text": message.text,
        "fields": dict(message.fields),
        "url": message.url,
        "at": at.isoformat(),
    }


def _slack_body(message: Message, _: datetime) -> dict[str, Any]:
    def plain(text: str) -> str:  # without mentions of everyone in a channel
        return text.translate(_SLACK_MARKS)

    attachment = {
        "fallback": plain(message.title),
        "color": f"#{_COLOURS[message.level]:06x}",
        "title": plain(message.title),
        "text": plain(message.text),
        "fields": [
            {"title": plain(name), "value": plain(_shorten(value, _MAX_FIELD)), "short": True}
            for name, value in message.fields.items()
        ],
    }
    return {"attachments": [{**attachment, **({"title_link": message.url} if message.url else {})}]}


def _discord_body(message: Message, _: datetime) -> dict[str, Any]:
    embed = {
        "title": _shorten(message.title, 256),
        "description": _shorten(message.text, 4000),
        "color": _COLOURS[message.level],
        "fields": [
            {"name": _shorten(name, 256), "value": _shorten(value, _MAX_FIELD) or "-", "inline": True}
            for name, value in message.fields.items()
        ],
    }
    return {
        "embeds": [{**embed, **({"url": message.url} if message.url else {})}],
        "allowed_mentions": {"parse": []},
    }


def _teams_body(message: Message, _: datetime) -> dict[str, Any]:
    body: list[dict[str, Any]] = [
        {"type": "TextBlock", "text": message.title, "weight": "Bolder", "size": "Medium", "wrap": True}
    ]
    if message.text:
        body.append({"type": "TextBlock", "text": message.text, "wrap": True})
    if message.fields:
        facts = [{"title": name, "value": value} for name, value in message.fields.items()]
        body.append({"type": "FactSet", "facts": facts})
    actions = [{"type": "Action.OpenUrl", "title": "Open", "url": message.url}] if message.url else []
    card = {"type": "AdaptiveCard", "version": "1.4", "body": body, "actions": actions}
    return {
        "type": "message",
        "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
    }


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


_BODIES: Mapping[WebhookFormat, Callable[[Message, datetime], dict[str, Any]]] = {
    WebhookFormat.SLACK: _slack_body,
    WebhookFormat.DISCORD: _discord_body,
    WebhookFormat.TEAMS: _teams_body,
    WebhookFormat.JSON: json_body,
}
