from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import AttemptId
from hopyard.domain.notification import (
    MAX_TARGETS,
    Alert,
    AlertLevel,
    Message,
    NotifyOn,
    NotifyTarget,
    TargetKind,
    check_alert,
    check_targets,
    format_target,
    parse_target,
    retry_at,
    shown_target,
    target_kind,
)
from hopyard.domain.notification_text import WebhookFormat, format_of, webhook_body
from hopyard.errors import SpecError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MESSAGE = Message(
    "a/b/1 failed",
    "<!channel> & more",
    AlertLevel.ERROR,
    "a/b/1",
    NotifyOn.FAILED,
    {"loss": "0.5"},
    "http://x/1",
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("lab", NotifyTarget("lab")),
        ("alice@lab.org", NotifyTarget("alice@lab.org")),
        ("https://h.org/a?b=c", NotifyTarget("https://h.org/a?b=c")),
        ("failed=lab", NotifyTarget("lab", (NotifyOn.FAILED,))),
        (
            "failed,alert=https://h.org/x=y",
            NotifyTarget("https://h.org/x=y", (NotifyOn.FAILED, NotifyOn.ALERT)),
        ),
    ],
)
def test_target_is_parsed_and_formatted(text: str, target: NotifyTarget) -> None:
    assert parse_target(text) == target
    assert format_target(target) == text


@pytest.mark.parametrize(
    "text", ["", "a b", "-x", "ftp://h/x", "https://", "http://h:0/x", "x@", "end=lab", "failed="]
)
def test_invalid_target_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(SpecError, match=r"^--on-end: "):
        parse_target(text)


def test_kind_of_a_target() -> None:
    assert [target_kind(text) for text in ("lab", "a@b.org", "http://h/x", "UPPER")] == [
        TargetKind.NAMED,
        TargetKind.EMAIL,
        TargetKind.WEBHOOK,
        None,
    ]


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        target = parse_target(text)
    except SpecError:
        return
    assert parse_target(format_target(target)) == target


def test_address_of_a_webhook_is_shown_without_its_secret() -> None:
    assert shown_target("https://u:p@hooks.slack.com:443/services/T0/B1?x=1") == "https://hooks.slack.com/***"
    assert shown_target("lab") == "lab"


def test_targets_are_given_once_and_limited() -> None:
    with pytest.raises(SpecError, match="`lab` is given twice"):
        check_targets([NotifyTarget("lab"), NotifyTarget("lab", (NotifyOn.ALERT,))])
    with pytest.raises(SpecError, match="at most 16"):
        check_targets([NotifyTarget(f"t{index}") for index in range(MAX_TARGETS + 1)])


def test_equal_alerts_within_a_minute_have_one_key() -> None:
    attempt = AttemptId("r1.1")
    first, later = Alert("x", NOW), Alert("x", NOW + timedelta(seconds=59))
    assert first.key(attempt) == later.key(attempt)
    others = {
        Alert("x", NOW + timedelta(seconds=60)).key(attempt),
        Alert("x", NOW).key(None),
        Alert("y", NOW).key(attempt),
        Alert("x", NOW, level=AlertLevel.INFO).key(attempt),
    }
    assert len(others | {first.key(attempt)}) == 5


def test_alert_needs_text_and_a_known_level() -> None:
    assert check_alert(" x ", "", "info") == ("x", "")
    assert check_alert("a\0b\r\nc\x1b[2J", "t\nu", "error") == ("a b\nc [2J", "t u")
    for text, level in (("", "info"), ("x", "loud")):
        with pytest.raises(SpecError, match=r"^alert: "):
            check_alert(text, "", level)


def test_delivery_is_repeated_five_times_over_more_than_an_hour() -> None:
    delays = [retry_at(tries, NOW) for tries in range(1, 7)]
    assert [None if at is None else (at - NOW).total_seconds() for at in delays] == [
        5,
        30,
        120,
        600,
        3600,
        None,
    ]


def test_format_follows_the_host() -> None:
    assert [
        format_of(url)
        for url in (
            "https://hooks.slack.com/services/x",
            "https://discord.com/api/webhooks/1/x",
            "https://lab.webhook.office.com/x",
            "https://hooks.slack.com.evil.org/x",
        )
    ] == [WebhookFormat.SLACK, WebhookFormat.DISCORD, WebhookFormat.TEAMS, WebhookFormat.JSON]


def test_chat_services_get_no_link_to_this_machine() -> None:
    local = replace(MESSAGE, url="http://127.0.0.1:8765/runs/1")
    assert "title_link" not in webhook_body(local, WebhookFormat.SLACK, at=NOW)["attachments"][0]
    assert "url" not in webhook_body(local, WebhookFormat.DISCORD, at=NOW)["embeds"][0]
    card = webhook_body(local, WebhookFormat.TEAMS, at=NOW)["attachments"][0]["content"]
    assert card["actions"] == []
    assert webhook_body(local, WebhookFormat.JSON, at=NOW)["url"] == local.url
    assert local.url in local.plain_text()


def test_text_of_a_script_mentions_no_one_in_a_channel() -> None:
    slack = webhook_body(MESSAGE, WebhookFormat.SLACK, at=NOW)["attachments"][0]
    assert (slack["text"], slack["title_link"]) == ("&lt;!channel&gt; &amp; more", "http://x/1")
    assert slack["fields"] == [{"title": "loss", "value": "0.5", "short": True}]
    discord = webhook_body(MESSAGE, WebhookFormat.DISCORD, at=NOW)
    assert discord["allowed_mentions"] == {"parse": []}
    assert (discord["embeds"][0]["title"], discord["embeds"][0]["color"]) == ("a/b/1 failed", 0xC62828)
    card = webhook_body(MESSAGE, WebhookFormat.TEAMS, at=NOW)["attachments"][0]["content"]
    assert [part["type"] for part in card["body"]] == ["TextBlock", "TextBlock", "FactSet"]
    assert webhook_body(MESSAGE, WebhookFormat.JSON, at=NOW) == {
        "event": "failed",
        "run": "a/b/1",
        "level": "error",
        "title": "a/b/1 failed",
        "text": "<!channel> & more",
        "fields": {"loss": "0.5"},
        "url": "http://x/1",
        "at": "2030-01-01T00:00:00+00:00",
    }
