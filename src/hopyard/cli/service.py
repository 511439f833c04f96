"""`hop service`: the server of this machine under systemd."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

from hopyard.cli import console
from hopyard.cli.options import json_option
from hopyard.config.home import HOME_VARIABLE, Home, user_name
from hopyard.config.systemd import home_of_unit, unit_name, unit_text
from hopyard.errors import Conflict, Forbidden, NotFound, ServerUnavailable, SpecError

_SYSTEM_UNITS = Path("/etc/systemd/system")
_TIMEOUT_S = 60.0
_system_option = click.option(
    "--system", is_flag=True, help="A unit of the whole machine, which starts at boot; needs root."
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Where a unit of a home is, and the words that make `systemctl` look there."""

    home: Home
    name: str
    file: Path
    scope: tuple[str, ...]


@click.group("service", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def service(ctx: click.Context) -> None:
    """Let systemd start the server of this machine at boot, and again when it crashes.

    Without that, the first `hop` command after a reboot starts it, and until then nothing starts.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@service.command("install")
@_system_option
@click.option(
    "--run-as",
    metavar="USER",
    help="With --system: the owner of the server.  [default: the user of sudo, else root]",
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@click.option(
    "--force", is_flag=True, help="Replace a unit of another home, or one that `hop service` did not write."
)
def install(system: bool, run_as: str | None, only_print: bool, force: bool) -> None:
    """Write the unit and start it. A server that runs already is replaced; its runs continue."""
    from hopyard.sdk.connect import check_own_server

    if run_as is not None and not system:
        raise SpecError("--run-as is of a unit of the whole machine", hints=("add --system",))
    user = _user(run_as) if system else None
    unit = _unit(system, user)
    about = unit.home.find_folder()
    if about is not None and user is not None and about.st_uid != user.pw_uid:
        raise SpecError(
            f"{unit.home.root} belongs to {user_name(about.st_uid)}, and the server would run as "
            f"{user.pw_name}: it would not start",
            hints=(
                f"--run-as {user_name(about.st_uid)}",
                f"or unset {HOME_VARIABLE} to use the home of {user.pw_name}",
            ),
        )
    check_own_server(unit.home)
    text = unit_text(
        unit.home,
        python=sys.executable,
        path=os.environ.get("PATH", os.defpath),
        user=user.pw_name if user else None,
    )
    if only_print:
        console.out_lines(text.splitlines())
        return
    _check_free(unit, force)
    _write(unit, text, user)
    if not _reachable(unit):
        console.say(f"wrote {unit.file}")
        start = " ".join(("systemctl", *unit.scope, "enable", "--now", unit.name))
        raise ServerUnavailable(
            "systemd does not answer here, so nothing was started",
            hints=(f"where it does: {start}", "without systemd: `@reboot hop up` in crontab"),
        )
    _replace_server(unit, user)
    console.say(f"wrote and started {unit.file}")
    if user is None and not _lingers():
        console.say("hint: so that it starts at boot, before you log in: `loginctl enable-linger`")
    if (user.pw_uid if user else os.getuid()) == 0:
        console.say("warning: this server runs as root, and so do the runs of all its users; see --run-as")


@service.command("uninstall")
@_system_option
@click.option("--run-as", metavar="USER", help="With --system: the owner of the server.")
def uninstall(system: bool, run_as: str | None) -> None:
    """End the unit and remove it. Live runs continue; the next `hop` command starts a server that adopts
    them."""
    unit = _unit(system, _user(run_as) if system else None)
    if not unit.file.exists():
        raise NotFound(f"there is no unit {unit.file}", hints=("`hop service status` shows the units",))
    _check_ours(unit)
    reachable = _reachable(unit)
    if reachable:
        _systemctl(unit, "disable", "--now", unit.name)
    unit.file.unlink()
    if reachable:
        _systemctl(unit, "daemon-reload")
    console.say(f"removed {unit.file}")


@service.command("status")
@_system_option
@click.option("--run-as", metavar="USER", help="With --system: the owner of the server.")
@json_option
def status(system: bool, run_as: str | None, as_json: bool) -> int:
    """Show whether there is a unit, and its state in systemd. The exit code is 1 unless it is active."""
    unit = _unit(system, _user(run_as) if system else None)
    told = {
        "unit": unit.name,
        "file": str(unit.file),
        "home": str(unit.home.root),
        "installed": unit.file.exists(),
        "state": "unknown",
        "enabled": False,
    }
    if unit.file.exists() and _reachable(unit):
        told["state"] = _ask(unit, "is-active", unit.name) or "unknown"
        told["enabled"] = _ask(unit, "is-enabled", unit.name) == "enabled"
    if as_json:
        console.out_json(told)
    elif not told["installed"]:
        console.out(f"no unit: {unit.file}")
        console.say("hint: `hop service install` writes it")
    else:
        console.out(
            f"{unit.name}  {told['state']}, "
            f"{'starts at boot' if told['enabled'] else 'does not start at boot'}"
        )
        console.out_lines([f"file  {unit.file}", f"home  {unit.home.root}"])
    return 0 if told["state"] == "active" else 1


def _unit(system: bool, user: pwd.struct_passwd | None) -> Unit:
    if not system:
        home = Home.default()
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        name = unit_name(home, Home(Path.home() / ".hopyard"))
        return Unit(home, name, folder / name, ("--user",))
    assert user is not None
    usual = Home(Path(user.pw_dir) / ".hopyard")
    home = Home.default() if HOME_VARIABLE in os.environ else usual
    name = unit_name(home, usual)
    name = name if user.pw_uid == 0 or home.root != usual.root else f"hopyard-{user.pw_name}.service"
    return Unit(home, name, _SYSTEM_UNITS / name, ())


def _user(name: str | None) -> pwd.struct_passwd:
    if os.geteuid() != 0:
        raise Forbidden(
            "only root may write units of the whole machine", hints=("leave --system out, or use sudo",)
        )
    wanted = name or os.environ.get("SUDO_USER") or "root"
    try:
        return pwd.getpwnam(wanted)
    except KeyError:
        raise NotFound(f"--run-as: there is no user `{wanted}` on this machine") from None


def _check_free(unit: Unit, force: bool) -> None:
    if unit.file.exists() and not force:
        _check_ours(unit)


def _check_ours(unit: Unit) -> None:
    found = home_of_unit(unit.file.read_text(errors="replace"))
    if found != unit.home.root:
        what = "is not one of `hop service`" if found is None else f"is of the home {found}"
        raise Conflict(
            f"{unit.file} {what}", hints=("look at it; `hop service install --force` replaces it",)
        )


def _write(unit: Unit, text: str, user: pwd.struct_passwd | None) -> None:
    """The unit, and the home where its user cannot make it.
    In folders of that user root makes nothing: a link could stand in its place."""
    if user is not None and user.pw_uid != os.geteuid():
        root = unit.home.root
        if not root.exists() and root.parent.stat().st_uid == os.geteuid():
            root.mkdir(mode=0o700)
            os.chown(root, user.pw_uid, user.pw_gid, follow_symlinks=False)
    else:
        unit.home.create()
        unit.home.server_log.parent.mkdir(mode=0o700, exist_ok=True)
    unit.file.parent.mkdir(parents=True, exist_ok=True)
    part = unit.file.with_name(f".{unit.file.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(unit.file)


def _replace_server(unit: Unit, user: pwd.struct_passwd | None) -> None:
    """The unit's server in the place of one that a command started."""
    from hopyard.sdk.connect import find_server, stop_server

    mine = user is None or user.pw_uid == os.geteuid()
    _systemctl(unit, "daemon-reload")
    if mine and _ask(unit, "is-active", unit.name) != "active":
        stop_server(unit.home, runs="keep")
    _systemctl(unit, "enable", unit.name)
    _systemctl(unit, "restart", unit.name)
    deadline = time.monotonic() + _TIMEOUT_S
    while _ask(unit, "is-active", unit.name) in ("active", "activating") and time.monotonic() < deadline:
        if not mine or find_server(unit.home) is not None:
            return
        time.sleep(0.1)
    look = " ".join(("systemctl", *unit.scope, "status", unit.name))
    log = (
        f"its log: journalctl --unit {unit.name}"
        if user is not None
        else f"its log is {unit.home.server_log}"
    )
    raise ServerUnavailable(f"{unit.name} did not start", hints=(look, log))


def _reachable(unit: Unit) -> bool:
    return shutil.which("systemctl") is not None and _call(unit, "show", "--property=Version").returncode == 0


def _lingers() -> bool:
    name = pwd.getpwuid(os.getuid()).pw_name
    return Path("/var/lib/systemd/linger", name).exists()


def _ask(unit: Unit, *words: str) -> str:
    return _call(unit, *words).stdout.strip()


def _systemctl(unit: Unit, *words: str) -> None:
    done = _call(unit, *words)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ServerUnavailable(f"systemctl {' '.join((*unit.scope, *words))} failed: {said[-1]}")


def _call(unit: Unit, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", *unit.scope, *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
