"""Notifications about a run: that it ended, and alerts of its script. Targets, events, and what is sent.

A target is an address for e-mail, an address for a webhook, or the name of a target in the server's settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from urllib.parse import urlsplit

from hopyard.backports import StrEnum, dataclass
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run_environment import MASKED_VALUE
from hopyard.domain.text import escape
from hopyard.errors import SpecError

MAX_TARGETS = 16  # of one run
MAX_TARGET = 2048  # characters
MAX_ALERTS = 100  # of one run
MAX_ALERT_TITLE, MAX_ALERT_TEXT = 256, 4096  # characters
END_KEY = "end"  # of the notification that a run ended
# An attempt at delivery that ends without a result is repeated after this time.
CLAIM = timedelta(seconds=60)
# The notification of the end waits for the last alerts of the script, which are stored shortly after it.
END_DELAY = timedelta(seconds=2)
_RETRY_DELAYS_S = (5, 30, 120, 600, 3600)
_ALERT_PERIOD_S = 60  # equal alerts of a run within it are one
_NAME_PATTERN = "[a-z][a-z0-9_-]{0,62}"
_ADDRESS_PATTERN = "[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
# of the texts that may be a target; an address of a webhook is checked further
TARGET_PATTERN = f"{_NAME_PATTERN}|{_ADDRESS_PATTERN}|https?://[!-~]+"
_NAME, _ADDRESS = re.compile(_NAME_PATTERN), re.compile(_ADDRESS_PATTERN)
_HINT = "give an e-mail address, the https address of a webhook, or the name of a target of the server"


class NotifyOn(StrEnum):
    """What a target is notified of."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ALERT = "alert"


class AlertLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TargetKind(StrEnum):
    EMAIL = "email"
    WEBHOOK = "webhook"
    NAMED = "named"  # defined in the settings of the server


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """A target of a run. when: the events it gets; all without any."""

    to: str
    when: tuple[NotifyOn, ...] = ()

    def gets(self, event: NotifyOn) -> bool:
        return not self.when or event in self.when


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of a script, or of a user."""

    text: str
    at: datetime
    title: str = ""
    level: AlertLevel = AlertLevel.WARNING

    def key(self, attempt: AttemptId | None) -> str:
        """Returns the key under which it is stored once, however many processes and readings report it."""
        period = int(self.at.timestamp() // _ALERT_PERIOD_S)
        content = "\0".join((attempt or "", str(period), self.level, self.title, self.text))
        return f"alert-{blake2b(content.encode(), digest_size=12).hexdigest()}"


class DeliveryState(StrEnum):
    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"  # given up


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification to one target, as stored. alert: None for the end of the run. next_at: the time of the
    next attempt at delivery. tries: how many have failed."""

    run: RunId
    key: str
    to: str
    next_at: datetime
    alert: Alert | None = None
    tries: int = 0


def parse_target(text: str, *, what: str = "--on-end") -> NotifyTarget:
    """Parses `alice@lab.org`, or `failed,alert=alice@lab.org` for some events only. Raises SpecError."""
    words, equals, to = text.partition("=")
    events = words.split(",")
    if equals and all(re.fullmatch("[a-z]+", word) for word in events):
        return check_target(NotifyTarget(to, parse_events(events, what=what)), what=what)
    return check_target(NotifyTarget(text), what=what)


def check_alert(text: str, title: str, level: str) -> tuple[str, str]:
    """Returns text and title as they are stored: of limited length, without characters that act on a terminal
    or a database. Raises SpecError for an unknown level and for an alert without text."""
    if level not in list(AlertLevel):
        raise SpecError(f"alert: `{escape(str(level))}` is no level", hints=(f"use {', '.join(AlertLevel)}",))
    lines = str(text).strip()[:MAX_ALERT_TEXT].splitlines()
    text, title = "\n".join(map(_printable, lines)), _printable(str(title).strip()[:MAX_ALERT_TITLE])
    if not text and not title:
        raise SpecError("alert: it has no text", hints=("give the text of the alert",))
    return text, title


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def parse_events(words: Sequence[str], *, what: str) -> tuple[NotifyOn, ...]:
    """Raises SpecError for a word that is no event."""
    for word in words:
        if word not in list(NotifyOn):
            raise SpecError(
                f"{what}: `{escape(str(word))}` is no event of a run",
                hints=(f"the events are {', '.join(NotifyOn)}",),
            )
    return tuple(dict.fromkeys(map(NotifyOn, words)))


def target_kind(to: str) -> TargetKind | None:
    """Returns the kind of an address or name; None for a text that is none."""
    if _NAME.fullmatch(to):
        return TargetKind.NAMED
    if _ADDRESS.fullmatch(to):
        return TargetKind.EMAIL
    return TargetKind.WEBHOOK if is_webhook(to) else None


def is_webhook(text: str) -> bool:
    """Returns whether a text is the address of a webhook."""
    if len(text) > MAX_TARGET or not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def check_target(target: NotifyTarget, *, what: str) -> NotifyTarget:
    """Raises SpecError for a target that cannot be one."""
    if target_kind(target.to) is None:
        raise SpecError(f"{what}: `{escape(target.to[:80])}` is no target of notifications", hints=(_HINT,))
    return target


def check_targets(targets: Sequence[NotifyTarget], *, what: str = "on_end") -> tuple[NotifyTarget, ...]:
    """Returns the targets of a run. Raises SpecError also for too many and for one that is given twice."""
    if len(targets) > MAX_TARGETS:
        raise SpecError(f"{what}: {len(targets)} targets, at most {MAX_TARGETS} are allowed")
    names = [check_target(target, what=what).to for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{what}: `{shown_target(name)}` is given twice", hints=("name each once",))
    return tuple(targets)


def format_target(target: NotifyTarget) -> str:
    """Returns what `parse_target` parses."""
    return f"{','.join(target.when)}={target.to}" if target.when else target.to


def shown_target(to: str) -> str:
    """Returns a target without the secret parts of the address of a webhook."""
    if target_kind(to) is not TargetKind.WEBHOOK:
        return to
    parts = urlsplit(to)
    return f"{parts.scheme}://{parts.hostname}/{MASKED_VALUE}"


def retry_at(tries: int, now: datetime) -> datetime | None:
    """Returns when delivery is attempted again after this many failures; None for no more."""
    if tries > len(_RETRY_DELAYS_S):
        return None
    return now + timedelta(seconds=_RETRY_DELAYS_S[tries - 1])


@dataclass(frozen=True, slots=True)
class Message:
    """What a notification says. fields: facts by name, in order. url: of the run; "" without."""

    title: str
    text: str
    level: AlertLevel
    run: str
    event: NotifyOn
    fields: Mapping[str, str]
    url: str = ""

    def plain_text(self) -> str:
        """Returns the body of an e-mail."""
        lines = [self.text] if self.text else []
        lines += [f"{name}: {value}" for name, value in self.fields.items()]
        return "\n".join([*lines, *([self.url] if self.url else [])]) + "\n"


def alert_sentence(alert: Alert) -> str:
    """Returns the detail of the event of an alert."""
    return f"{alert.level}: {': '.join(filter(None, (alert.title, alert.text)))}"


def sent_sentence(notification: Notification) -> str:
    return f"{shown_target(notification.to)} was notified of {_subject(notification)}"


def not_sent_sentence(notification: Notification, reason: str) -> str:
    return f"{shown_target(notification.to)} could not be notified of {_subject(notification)}: {reason}"


def _subject(notification: Notification) -> str:
    return "the end" if notification.alert is None else "an alert"
