"""`notifications` of `config.yaml`: the mail server, and named targets.

```yaml
notifications:
  mail: {host: smtp.lab.org, port: 587, security: starttls, user: hopyard, password_file: smtp.txt,
         from: hopyard@lab.org}
  targets:
    lab: {webhook: https://hooks.slack.com/services/…}    # format: slack, discord, teams or json
    oncall: {email: oncall@lab.org}
    desk: {command: [notify-send, Hopyard]}               # JSON on stdin
  webhook_hosts: [hooks.slack.com, "*.lab.org"]           # which addresses runs may name; all by default
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.notification import NotifyTarget, TargetKind, shown_target, target_kind
from hopyard.domain.notification_text import WebhookFormat, format_of
from hopyard.domain.text import escape
from hopyard.errors import SpecError

_PORTS = {"none": 25, "starttls": 587, "tls": 465}


class MailSecurity(StrEnum):
    NONE = "none"
    STARTTLS = "starttls"
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class MailSettings:
    """password_file: its first line is the password of `user`."""

    host: str
    port: int
    sender: str
    security: MailSecurity = MailSecurity.NONE
    user: str = ""
    password_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Webhook:
    url: str
    format: WebhookFormat


@dataclass(frozen=True, slots=True)
class Mail:
    to: str


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """arguments: of a program on the server's machine, which gets the notification as JSON on stdin."""

    arguments: tuple[str, ...]


Destination = Webhook | Mail | CommandTarget


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """mail: None if the server sends no e-mail. targets: by name. webhook_hosts: patterns of the hosts of
    webhooks that runs may name; None allows all."""

    mail: MailSettings | None = None
    targets: Mapping[str, Destination] = field(default_factory=dict)
    webhook_hosts: tuple[str, ...] | None = None

    def destination(self, to: str) -> Destination:
        """Returns where a notification to this target goes. Raises SpecError."""
        match target_kind(to):
            case TargetKind.NAMED if to in self.targets:
                return self.targets[to]
            case TargetKind.NAMED:
                raise SpecError(
                    f"the server has no target `{to}` of notifications",
                    hints=unknown_name_hints(to, sorted(self.targets), subject="its targets")
                    if self.targets
                    else ("give an e-mail address or a webhook, or define it in config.yaml",),
                )
            case TargetKind.EMAIL if self.mail is not None:
                return Mail(to)
            case TargetKind.EMAIL:
                raise SpecError(
                    f"{to} cannot be notified: the server sends no e-mail",
                    hints=("set `notifications: {mail: {host: …}}` in config.yaml, or give a webhook",),
                )
            case TargetKind.WEBHOOK if self._is_allowed(to):
                return Webhook(to, format_of(to))
            case TargetKind.WEBHOOK:
                raise SpecError(
                    f"{shown_target(to)} cannot be notified: the server sends nothing to this host",
                    hints=(f"it sends to {', '.join(self.webhook_hosts or ()) or 'no host'}",),
                )
        raise SpecError(f"`{escape(to[:80])}` is no target of notifications")

    def check(self, targets: Sequence[NotifyTarget]) -> None:
        """Raises SpecError for a target that the server cannot notify."""
        for target in targets:
            self.destination(target.to)

    def _is_allowed(self, url: str) -> bool:
        host = (urlsplit(url).hostname or "").lower()
        return self.webhook_hosts is None or any(fnmatchcase(host, each) for each in self.webhook_hosts)


def read_notifications(section: YamlSection) -> NotificationSettings:
    """Raises SpecError naming the key."""
    section.check_keys("mail", "targets", "webhook_hosts")
    mail = _read_mail(section.section("mail")) if section.contains("mail") else None
    targets = section.section("targets")
    return NotificationSettings(
        mail,
        {name: _read_target(targets, name, has_mail=mail is not None) for name in targets.values},
        _read_hosts(section),
    )


def _read_mail(section: YamlSection) -> MailSettings:
    section.check_keys("host", "port", "security", "user", "password_file", "from")
    for key in ("host", "from"):
        if not section.text(key):
            raise section.error(key, "missing", "give the mail server and the sender's address")
    sender = section.text("from")
    if target_kind(sender) is not TargetKind.EMAIL:
        raise section.error("from", f"{format_given(sender)} is no address", "for example hopyard@lab.org")
    security = section.text("security") or "none"
    if security not in _PORTS:
        raise section.error("security", f"{format_given(security)} is not known", f"use {', '.join(_PORTS)}")
    password = section.text("password_file")
    file = None if not password else Path(section.file).parent / password
    if file is not None and not section.text("user"):
        raise section.error("user", "missing", "name the user of the password, or leave out the password")
    return MailSettings(
        section.text("host"),
        section.integer("port", _PORTS[security], low=1, high=65535),
        sender,
        MailSecurity(security),
        section.text("user"),
        file,
    )


def _read_target(targets: YamlSection, name: str, *, has_mail: bool) -> Destination:
    section = targets.section(name)
    section.check_keys("webhook", "format", "email", "command")
    given = [key for key in ("webhook", "email", "command") if section.contains(key)]
    if target_kind(name) is not TargetKind.NAMED:
        raise targets.error(name, "it is no name of a target", "use a letter, then a-z, 0-9, - and _")
    if len(given) != 1:
        raise targets.error(name, "its kind is unclear", "give one of webhook, email and command")
    if section.contains("format") and given != ["webhook"]:
        raise section.error("format", "only webhooks have a format", "leave it out")
    match given[0]:
        case "webhook":
            return _read_webhook(section)
        case "email":
            to = section.text("email")
            if target_kind(to) is not TargetKind.EMAIL:
                raise section.error("email", f"{format_given(to)} is no address", "as alice@lab.org")
            if not has_mail:
                raise section.error(
                    "email", "the server sends no e-mail", "set `notifications: {mail: {host: …}}`"
                )
            return Mail(to)
        case _:
            return _read_command(section)


def _read_webhook(section: YamlSection) -> Webhook:
    url, format_ = section.text("webhook"), section.text("format")
    if target_kind(url) is not TargetKind.WEBHOOK:
        raise section.error("webhook", f"{format_given(url)} is no address", "as https://host/path")
    if format_ and format_ not in list(WebhookFormat):
        raise section.error(
            "format", f"{format_given(format_)} is not known", f"use {', '.join(WebhookFormat)}"
        )
    return Webhook(url, WebhookFormat(format_) if format_ else format_of(url))


def _read_command(section: YamlSection) -> CommandTarget:
    arguments = [value for _, value in section.items("command")]
    if not arguments or not all(isinstance(each, str) and each for each in arguments):
        raise section.error(
            "command", "it is no list of texts", "write a program and its arguments: [notify-send, Hopyard]"
        )
    return CommandTarget(tuple(map(str, arguments)))


def _read_hosts(section: YamlSection) -> tuple[str, ...] | None:
    if not section.contains("webhook_hosts"):
        return None
    hosts = [value for _, value in section.items("webhook_hosts")]
    if not all(isinstance(host, str) and host for host in hosts):
        raise section.error("webhook_hosts", "it is no list of hosts", 'as [hooks.slack.com, "*.lab.org"]')
    return tuple(str(host).lower() for host in hosts)
