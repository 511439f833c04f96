"""The systemd unit that starts the server of a home at boot, and again after a crash."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from hopyard.config.home import Home
from hopyard.domain.ids import slug
from hopyard.domain.text import check_line

_ESCAPED = re.compile(r'\\["\\]|%%|\$\$')


def unit_name(home: Home, default: Home) -> str:
    """Returns `hopyard.service` for the default home. Other units have the name of the folder and a digest of
    its path in their names."""
    if home.root == default.root:
        return "hopyard.service"
    digest = hashlib.sha256(str(home.root).encode()).hexdigest()[:8]
    return f"hopyard-{slug(home.root.name.lstrip('.'), fallback='home')}-{digest}.service"


def unit_text(home: Home, *, python: str, path: str, user: str | None = None) -> str:
    """user: the owner of the server, in a unit of the whole machine; None in a unit of the user's own.
    Raises SpecError for a home or a PATH with control characters, which a unit cannot hold.

    The unit ends the server only (`KillMode=process`): runs continue, and the next server adopts them. A run
    that is killed for its memory does not end the unit (`OOMPolicy=continue`). Runs get control groups below
    the unit's (`Delegate`). A unit of the machine logs to the journal: systemd opens a log file as root, and
    the user could put a link in its place.
    """
    check_line(str(home.root), subject="the home")
    check_line(path, subject="PATH")
    run_as = f"User={_check_line(user)}\n" if user else ""
    log = (
        ""
        if user
        else (
            f"StandardOutput=append:{_check_line(str(home.server_log))}\n"
            f"StandardError=append:{_check_line(str(home.server_log))}\n"
        )
    )
    target = "multi-user.target" if user else "default.target"
    return f"""\
# Written by `hop service install`; `hop service uninstall` removes it.
[Unit]
Description=Hopyard server of {_check_line(str(home.root))}
After=network-online.target postgresql.service
Wants=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=exec
{run_as}ExecStart={_quote(python)} -m hopyard.app --home {_quote(str(home.root)).replace("$", "$$")}
Environment={_quote(f"PATH={path}")}
{log}Restart=on-failure
RestartSec=2
KillMode=process
TimeoutStopSec=30
OOMPolicy=continue
Delegate=yes
UMask=0077
LimitNOFILE=1048576

[Install]
WantedBy={target}
"""


def home_from_unit(text: str) -> Path | None:
    """Returns the home that a Hopyard unit starts; None for any other unit."""
    for line in text.splitlines():
        if line.startswith("ExecStart=") and " -m hopyard.app --home " in line:
            argument = line.partition(" --home ")[2].strip()
            return Path(
                _ESCAPED.sub(lambda match: match[0][1], argument[1:-1] if argument[:1] == '"' else argument)
            )
    return None


def _quote(text: str) -> str:
    """Returns one word of a command or of a list. `%` is doubled. The arguments of a command need `$` doubled
    too; nothing else does."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _check_line(text: str) -> str:
    """Returns a value that fits on one line."""
    return text.replace("%", "%%")
