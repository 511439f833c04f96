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

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.config.home import HOME_VARIABLE, Home, user_name
from hopyard.config.systemd_unit import home_from_unit, unit_name, unit_text
from hopyard.errors import Conflict, Forbidden, NotFound, ServerUnavailable, SpecError

_SYSTEM_UNITS = Path("/etc/systemd/system")
_TIMEOUT_S = 60.0
_system_option = click.option(
    "--system", is_flag=True, help="A unit of the whole machine, which starts at boot; needs root."
)


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """Returns the place of a unit, and the options of `systemctl` for it."""

    home: Home
    name: str
    file: Path
    systemctl_options: tuple[str, ...]


@click.group("service", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def service(ctx: click.Context) -> None:
    """Let systemd start the server of this machine at boot, and after a crash.

    Without a unit, the first `hop` command after a reboot starts the server; no run starts before.
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
@click.option("--print", "only_print", is_flag=True, help="Print the unit without changing anything.")
@click.option("--force", is_flag=True, help="Replace a unit of another home or of another program.")
def install_service(system: bool, run_as: str | None, only_print: bool, force: bool) -> None:
    """Write the unit and start it. A running server is replaced; its runs continue."""
    from hopyard.api_client.local_server import check_own_server

    if run_as is not None and not system:
        raise SpecError("--run-as applies only to a unit of the whole machine", hints=("add --system",))
    user = _unit_user(run_as) if system else None
    unit = _find_unit(system, user)
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
        console.print_lines(text.splitlines())
        return
    _check_unit_absent(unit, force)
    _write(unit, text, user)
    if not _is_manager_reachable(unit):
        console.print_message(f"wrote {unit.file}")
        start = " ".join(("systemctl", *unit.systemctl_options, "enable", "--now", unit.name))
        raise ServerUnavailable(
            "systemd does not answer here, so the server was not started",
            hints=(
                f"start it where systemd runs: {start}",
                "without systemd, add `@reboot hop up` to crontab",
            ),
        )
    _replace_server(unit, user)
    console.print_message(f"wrote and started {unit.file}")
    if user is None and not _is_linger_enabled():
        console.print_message("hint: run `loginctl enable-linger` to start it at boot, before you log in")
    if (user.pw_uid if user else os.getuid()) == 0:
        console.print_message(
            "warning: this server runs as root, and so do the runs of all its users; see --run-as"
        )


@service.command("uninstall")
@_system_option
@click.option("--run-as", metavar="USER", help="With --system: the owner of the server.")
def uninstall_service(system: bool, run_as: str | None) -> None:
    """Stop the unit and remove it. Live runs continue; the next `hop` command starts a server that adopts
    them.
    """
    unit = _find_unit(system, _unit_user(run_as) if system else None)
    if not unit.file.exists():
        raise NotFound(f"there is no unit {unit.file}", hints=("run `hop service status` to list the units",))
    _check_is_hopyard_unit(unit)
    reachable = _is_manager_reachable(unit)
    if reachable:
        _run_systemctl(unit, "disable", "--now", unit.name)
    unit.file.unlink()
    if reachable:
        _run_systemctl(unit, "daemon-reload")
    console.print_message(f"removed {unit.file}")


@service.command("status")
@_system_option
@click.option("--run-as", metavar="USER", help="With --system: the owner of the server.")
@json_option
def show_service(system: bool, run_as: str | None, as_json: bool) -> int:
    """Show the unit and its state in systemd. The exit code is 1 unless it is active."""
    unit = _find_unit(system, _unit_user(run_as) if system else None)
    status = {
        "unit": unit.name,
        "file": str(unit.file),
        "home": str(unit.home.root),
        "installed": unit.file.exists(),
        "state": "unknown",
        "enabled": False,
    }
    if unit.file.exists() and _is_manager_reachable(unit):
        status["state"] = _query_systemctl(unit, "is-active", unit.name) or "unknown"
        status["enabled"] = _query_systemctl(unit, "is-enabled", unit.name) == "enabled"
    if as_json:
        console.print_json(status)
    elif not status["installed"]:
        console.print_line(f"no unit: {unit.file}")
        console.print_message("hint: run `hop service install` to write it")
    else:
        console.print_line(
            f"{unit.name}  {status['state']}, "
            f"{'starts at boot' if status['enabled'] else 'does not start at boot'}"
        )
        console.print_lines([f"file  {unit.file}", f"home  {unit.home.root}"])
    return 0 if status["state"] == "active" else 1


def _find_unit(system: bool, user: pwd.struct_passwd | None) -> SystemdUnit:
    if not system:
        home = Home.default()
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
        name = unit_name(home, Home(Path.home() / ".hopyard"))
        return SystemdUnit(home, name, folder / name, ("--user",))
    assert user is not None
    usual = Home(Path(user.pw_dir) / ".hopyard")
    home = Home.default() if HOME_VARIABLE in os.environ else usual
    name = unit_name(home, usual)
    name = name if user.pw_uid == 0 or home.root != usual.root else f"hopyard-{user.pw_name}.service"
    return SystemdUnit(home, name, _SYSTEM_UNITS / name, ())


def _unit_user(name: str | None) -> pwd.struct_passwd:
    if os.geteuid() != 0:
        raise Forbidden(
            "only root can write units of the whole machine", hints=("leave --system out, or use sudo",)
        )
    requested = name or os.environ.get("SUDO_USER") or "root"
    try:
        return pwd.getpwnam(requested)
    except KeyError:
        raise NotFound(f"--run-as: user `{requested}` does not exist on this machine") from None


def _check_unit_absent(unit: SystemdUnit, force: bool) -> None:
    if unit.file.exists() and not force:
        _check_is_hopyard_unit(unit)


def _check_is_hopyard_unit(unit: SystemdUnit) -> None:
    found = home_from_unit(unit.file.read_text(errors="replace"))
    if found != unit.home.root:
        what = "was not written by `hop service`" if found is None else f"belongs to the home {found}"
        raise Conflict(
            f"{unit.file} {what}", hints=("check it, then replace it with `hop service install --force`",)
        )


def _write(unit: SystemdUnit, text: str, user: pwd.struct_passwd | None) -> None:
    """Writes the unit, and the home if its user cannot create it.

    Root creates nothing in folders of that user, because a link could redirect the write.
    """
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


def _replace_server(unit: SystemdUnit, user: pwd.struct_passwd | None) -> None:
    """Replaces a server that a command started with the unit's server."""
    from hopyard.api_client.local_server import find_server, stop_server

    mine = user is None or user.pw_uid == os.geteuid()
    _run_systemctl(unit, "daemon-reload")
    if mine and _query_systemctl(unit, "is-active", unit.name) != "active":
        stop_server(unit.home, runs="keep")
    _run_systemctl(unit, "enable", unit.name)
    _run_systemctl(unit, "restart", unit.name)
    deadline = time.monotonic() + _TIMEOUT_S
    while (
        _query_systemctl(unit, "is-active", unit.name) in ("active", "activating")
        and time.monotonic() < deadline
    ):
        if not mine or find_server(unit.home) is not None:
            return
        time.sleep(0.1)
    look = " ".join(("systemctl", *unit.systemctl_options, "status", unit.name))
    log = (
        f"read its log: journalctl --unit {unit.name}"
        if user is not None
        else f"read its log: {unit.home.server_log}"
    )
    raise ServerUnavailable(f"{unit.name} did not start", hints=(look, log))


def _is_manager_reachable(unit: SystemdUnit) -> bool:
    return (
        shutil.which("systemctl") is not None
        and _call_systemctl(unit, "show", "--property=Version").returncode == 0
    )


def _is_linger_enabled() -> bool:
    name = pwd.getpwuid(os.getuid()).pw_name
    return Path("/var/lib/systemd/linger", name).exists()


def _query_systemctl(unit: SystemdUnit, *arguments: str) -> str:
    return _call_systemctl(unit, *arguments).stdout.strip()


def _run_systemctl(unit: SystemdUnit, *arguments: str) -> None:
    done = _call_systemctl(unit, *arguments)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ServerUnavailable(
            f"systemctl {' '.join((*unit.systemctl_options, *arguments))} failed: {lines[-1]}"
        )


def _call_systemctl(unit: SystemdUnit, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", *unit.systemctl_options, *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
