"""`hop doctor`: checks the requirements of runs on this machine and lists what to repair."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.config.home import ROOT_ERROR, ROOT_HINT, Home, check_owner, user_name
from hopyard.errors import HopyardError, ServerUnavailable
from hopyard.private_files import GROUP_AND_OTHERS_BITS

_GIB = 1024**3
_MIN_FREE_WARN, _MIN_FREE_FAIL = 10 * _GIB, 1 * _GIB
_MAX_CLOCK_SKEW_S = 5.0
_DAMAGED_BLOB_HINT = (
    "push the dataset or submit the same code again, or copy `blobs` back from a backup and check again"
)
_DATABASE_HINT = (
    "compare `database:` in config.yaml with its earlier value; if `hopyard.db` of an SQLite home was "
    "moved or lost, copy it back from a backup"
)
_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. warn: works with limits; fail: runs will not work."""

    check: str
    level: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


@click.command("doctor")
@click.option(
    "--verify",
    is_flag=True,
    help="Also read all blobs, cached trees and environments, and check their digests.",
)
@click.option(
    "--node",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Make the checks that replicas make before their scripts start, on the nodes of this machine.",
)
@json_option
def doctor(verify: bool, node: str | None, as_json: bool) -> int:
    """Check this machine: folders, disk, server, database, clock, limits, GPUs and tools.

    The exit code is 1 if a check fails.
    """
    if node is not None:
        if verify:
            raise click.UsageError("--verify and --node cannot be combined")
        from hopyard.cli.doctor_node import check_nodes

        return check_nodes(node, as_json=as_json)
    home = Home.default()
    findings: list[Finding] = []
    for check in (*CHECKS, *((check_caches, check_blobs) if verify else ())):
        for finding in _run_check(check, home):
            findings.append(finding)
            if not as_json:
                mark = console.paint(f"{finding.level:<5}", _STYLE[finding.level])
                console.print_line(f"{mark} {finding.check:<10} {finding.text}")
                if finding.hint:
                    console.print_line(f"{'':<17}hint: {finding.hint}")
                sys.stdout.flush()
    if as_json:
        console.print_json([asdict(finding) for finding in findings])
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _run_check(check: Callable[[Home], Iterator[Finding]], home: Home) -> Iterator[Finding]:
    name = check.__name__.removeprefix("check_")
    try:
        yield from check(home)
    except HopyardError as refused:
        yield Finding(name, "fail", refused.message, "; ".join(refused.hints))
    except OSError as error:
        yield Finding(name, "fail", f"could not be checked: {error}")


def check_home(home: Home) -> Iterator[Finding]:
    about = home.find_folder()
    if about is None:
        yield Finding("home", "ok", f"{home.root} does not exist yet; the first command creates it")
        return
    if not os.access(home.root, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "home",
            "fail",
            f"{home.root} cannot be written",
            f"chown it, or set HOPYARD_HOME to another folder (this is user {os.getuid()})",
        )
        return
    check_owner(home.root, about.st_uid)
    home.check_entries()
    readable = [
        path
        for path in (home.root, *sorted(home.root.iterdir()))
        if not path.is_symlink() and path.stat().st_mode & GROUP_AND_OTHERS_BITS
    ]
    if readable:
        path, closed = readable[0], "700" if readable[0].is_dir() else "600"
        yield Finding("home", "fail", f"other users can read {path}", f"chmod {closed} {path}")
    else:
        yield Finding("home", "ok", f"{home.root}, readable by its owner only")
    for above in home.root.resolve().parents:
        writers = _other_writers(above.stat())
        if writers:
            yield Finding(
                "parent",
                "warn",
                f"{writers} can rename and replace the contents of {above}, including this home",
                f"chmod +t {above}, or move the home",
            )
    if os.geteuid() == 0:
        yield Finding("user", "warn", ROOT_ERROR, ROOT_HINT)


def _other_writers(folder: os.stat_result) -> str:
    """Returns the other users that may rename entries of a folder; "" for only this user and root."""
    if folder.st_uid not in (0, os.geteuid()):
        return user_name(folder.st_uid)
    if folder.st_mode & stat.S_ISVTX:
        return ""
    if folder.st_mode & stat.S_IWOTH:
        return "every user"
    return (
        f"the group {folder.st_gid}"
        if folder.st_mode & stat.S_IWGRP and _is_shared_group(folder.st_gid)
        else ""
    )


def _is_shared_group(gid: int) -> bool:
    """Returns whether a group has members besides this user."""
    import grp
    import pwd

    me = os.geteuid()
    if gid == 0:
        return False
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return True
    members |= {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid}
    return bool(members - {user_name(me)})


def check_disk(home: Home) -> Iterator[Finding]:
    place = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = shutil.disk_usage(place).free
    level: Literal["ok", "warn", "fail"] = (
        "fail" if free < _MIN_FREE_FAIL else "warn" if free < _MIN_FREE_WARN else "ok"
    )
    hint = (
        ""
        if level == "ok"
        else ("delete old runs with `hop rm`, or set HOPYARD_HOME to a folder on another disk")
    )
    yield Finding("disk", level, f"{console.format_bytes(free)} free at {place}", hint)


def check_settings(home: Home) -> Iterator[Finding]:
    from hopyard.config.settings import read_settings

    try:
        read_settings(home.settings_file)
    except HopyardError as error:
        yield Finding("settings", "fail", error.message, "; ".join(error.hints))
        return
    yield Finding(
        "settings",
        "ok",
        str(home.settings_file) if home.settings_file.exists() else "defaults (there is no config.yaml)",
    )


def check_server(home: Home) -> Iterator[Finding]:
    import time

    from hopyard.api_client.local_server import connect, remote_url

    url = remote_url(home)
    if url is not None:
        yield Finding(
            "server",
            "ok",
            f"the server at {url} is in use: the checks of server, nodes, clock and blobs are about "
            f"it, all others about {home.root}",
        )
    try:
        client = connect(start=False)
        began = time.perf_counter()
        health = client.get_health()
        took = time.perf_counter() - began
        status = client.get_status()
    except ServerUnavailable as error:
        if (home.read_server() or {}).get("pid"):
            yield Finding(
                "server",
                "warn",
                f"does not answer: {error.message}",
                "; ".join(error.hints) or f"the next command starts it again; its log is {home.server_log}",
            )
        else:
            yield Finding("server", "ok", "not running; the first command that needs it starts it")
        return
    for node in status["nodes"]:
        if node.get("trouble"):
            yield Finding(
                "nodes",
                "fail",
                f"{node['id']} is out of service: {node['trouble']}",
                "wait until the trouble is over: the node then opens by itself",
            )
    for warning in status["warnings"]:
        if warning != ROOT_ERROR:
            yield Finding(
                "server", "warn", warning, _DATABASE_HINT if "belong to another database" in warning else ""
            )
    unready = [node["id"] for node in status["nodes"] if not node.get("ready", True)]
    yield Finding(
        "server", "ok", f"{client.url} answers in {took * 1000:.1f} ms, version {status['version']}"
    )
    if unready or not status["nodes"]:
        yield Finding(
            "nodes",
            "fail",
            f"not ready: {', '.join(unready)}" if unready else "there is no token",
            f"see {home.server_log}",
        )
    yield _check_clock(health["started_at"], status["uptime_s"])


def _check_clock(started_at: str, uptime_s: float) -> Finding:
    """Compares this clock with the server's, computed from its start time and uptime."""
    skew = abs(console.seconds_since(started_at) - uptime_s)
    if skew > _MAX_CLOCK_SKEW_S:
        return Finding(
            "clock",
            "warn",
            f"differs from the server's by {console.format_duration(skew)}",
            "synchronise the clocks of both machines with NTP",
        )
    return Finding("clock", "ok", "agrees with the server's clock")


def check_database(home: Home) -> Iterator[Finding]:
    from hopyard.config.settings import read_settings

    address = read_settings(home.settings_file).database
    if address is not None:
        yield _check_postgresql(address)
        return
    if not home.database.exists():
        yield Finding("database", "ok", "does not exist yet")
        return
    import sqlite3

    try:
        connection = sqlite3.connect(f"file:{home.database}?mode=ro", uri=True, timeout=10)
        try:
            problems = [row[0] for row in connection.execute("PRAGMA quick_check(5)")]
        finally:
            connection.close()
    except sqlite3.Error as error:
        problems = [str(error)]
    if problems == ["ok"]:
        yield Finding(
            "database",
            "ok",
            f"{home.database.name} is intact ({console.format_bytes(home.database.stat().st_size)})",
        )
    else:
        yield Finding(
            "database",
            "fail",
            f"{home.database} is damaged: {'; '.join(problems)}",
            "run `hop down`, then restore the file from a backup",
        )


def _check_postgresql(address: str) -> Finding:
    """Checks that the database answers and holds the tables of Hopyard."""
    try:
        import psycopg
    except ImportError:
        return Finding(
            "database", "fail", "PostgreSQL needs the driver psycopg", "pip install 'hopyard[postgres]'"
        )
    try:
        with psycopg.connect(address.replace("+psycopg", "", 1), connect_timeout=5) as connection:
            found = connection.execute(
                "SELECT current_setting('server_version'), to_regclass('alembic_version') IS NOT NULL"
            ).fetchone()
    except psycopg.Error as error:
        return Finding(
            "database",
            "fail",
            f"PostgreSQL does not answer: {str(error).strip().splitlines()[-1]}",
            "check that it runs, and `database:` in config.yaml",
        )
    version, made = found or ("", False)
    return Finding(
        "database",
        "ok",
        f"PostgreSQL {version} answers" + ("" if made else "; it has no tables of Hopyard yet"),
    )


def check_limits(_home: Home) -> Iterator[Finding]:
    writable = [place for place in _cgroup_findings() if os.access(place, os.W_OK)]
    if writable:
        yield Finding("limits", "ok", f"cgroups can be made below {writable[0]}")
    else:
        yield Finding(
            "limits",
            "warn",
            "cgroups cannot be made here",
            "memory limits are enforced by polling the process tree about once a second",
        )


def _cgroup_findings() -> Iterator[Path]:
    """Returns the cgroups of this process in the hierarchies that can limit memory."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from (
                root / path.lstrip("/")
                for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
                if (root / "cgroup.procs").exists()
            )
        elif "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory") / path.lstrip("/")


def check_privacy(home: Home) -> Iterator[Finding]:
    """Checks what isolates runs from each other's files and from the server's."""
    from hopyard.config.settings import read_settings
    from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode

    hint = (
        "give users that do not trust each other separate servers, since runs of one home can reach "
        "each other (docs/operating/isolation.md)"
    )
    if not read_settings(home.settings_file).runs.namespaces:
        yield Finding(
            "privacy",
            "warn",
            "`runs: {namespaces: false}`: runs can read and change the whole home, tokens and caches "
            "included",
            hint,
        )
        return
    protection = detect_isolation_mode()
    if protection is IsolationMode.MODES:
        yield Finding(
            "privacy",
            "warn",
            "the kernel denies user namespaces to runs: they can read and change the whole home, "
            "tokens and caches included",
            hint,
        )
    else:
        yield Finding(
            "privacy",
            "ok",
            f"runs see only their own folder of the home, and caches read-only (by a {protection.value})",
        )


def check_gpu(home: Home) -> Iterator[Finding]:
    import pynvml

    declared = _declared_gpus(home)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield Finding("gpu", "ok", "none found (no NVIDIA driver); " + (declared or "runs use the CPU"))
        return
    try:
        models: dict[str, int] = {}
        for i in range(pynvml.nvmlDeviceGetCount()):
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i))
            models[str(name)] = models.get(str(name), 0) + 1
        driver = pynvml.nvmlSystemGetDriverVersion()
        gpus = ", ".join(f"{count} x {name}" for name, count in models.items()) + f", driver {driver}"
        yield Finding("gpu", "ok", f"{gpus}; {declared}" if declared else gpus)
    except pynvml.NVMLError as error:
        yield Finding(
            "gpu",
            "warn",
            f"the driver does not answer: {error}",
            "check `nvidia-smi`; reboot after a driver update",
        )
    finally:
        pynvml.nvmlShutdown()


def _declared_gpus(home: Home) -> str:
    """Returns the GPUs that config.yaml declares, which override detection; "" for none or an unreadable
    file."""
    from hopyard.config.settings import read_settings

    try:
        node = read_settings(home.settings_file).node
    except HopyardError:
        return ""  # the check of the settings reports it
    if node.gpus is None:
        return ""
    if not node.gpus:
        return f"{home.settings_file.name} declares none, so runs get none"
    return (
        f"{home.settings_file.name} declares {node.gpus} x {node.gpu_model or 'GPU'}, which runs get "
        "without a check"
    )


def check_tools(_home: Home) -> Iterator[Finding]:
    git = _first_output_line("git", "--version")
    if git:
        yield Finding("git", "ok", git.removeprefix("git version "))
    else:
        yield Finding(
            "git", "warn", "not found", "install git to record commit and diff; runs work without it"
        )
    uv = _first_output_line(_check_uv() or "", "--version")
    if uv:
        yield Finding("uv", "ok", uv.split(" ")[1] if " " in uv else uv)
    else:
        yield Finding("uv", "warn", "not found", "install it for `hop run --requirements`: pip install uv")


def check_containers(_home: Home) -> Iterator[Finding]:
    from hopyard.container_engine.engine_discovery import can_start_podman, find_engine
    from hopyard.errors import ContainerError

    try:
        engine = find_engine(timeout_s=20)
    except ContainerError as error:
        if can_start_podman():
            yield Finding("containers", "ok", "Podman; its service starts with the first `hop run --image`")
        else:
            yield Finding("containers", "warn", error.message, "; ".join(error.hints))
        return
    rootless = ", rootless" if engine.rootless else ""
    yield Finding("containers", "ok", f"{engine.name} {engine.version} at {engine.api.path}{rootless}")


def check_python(_home: Home) -> Iterator[Finding]:
    from hopyard.client.interpreter import caller_interpreter

    interpreter = caller_interpreter(os.environ)
    version = _first_output_line(interpreter, "--version")
    if not version:
        yield Finding("python", "fail", f"{interpreter} does not start", "activate another environment")
        return
    yield Finding(
        "python",
        "ok",
        f"{version.removeprefix('Python ')} at {interpreter}; runs without --requirements use it",
    )
    code = (
        "import torch; print(torch.__version__, 'with CUDA' if torch.cuda.is_available() else 'without CUDA')"
    )
    torch = _first_output_line(interpreter, "-c", code)
    if torch:
        yield Finding("torch", "ok", torch)
    else:
        yield Finding(
            "torch",
            "warn",
            f"cannot be imported by {interpreter}",
            "install it if your scripts need it: pip install torch, or --requirements",
        )


def _check_uv() -> str | None:
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, OSError):
        return shutil.which("uv")


def _first_output_line(*command: str) -> str:
    """Returns the first line of a program's output, "" on failure."""
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def check_caches(home: Home) -> Iterator[Finding]:
    """Checks the caches that runs of this machine share."""
    from hopyard.datasets.tree_cache import TreeCache
    from hopyard.replica.python_environment import is_complete

    trees = list(TreeCache(home.trees).verify()) if home.trees.is_dir() else []
    changed = [str(manifest) for manifest, whole in trees if not whole]
    changed += [marker.parent.name for marker in home.envs.glob("*/.ready") if not is_complete(marker.parent)]
    if changed:
        yield Finding(
            "caches",
            "warn",
            f"changed since their creation: {', '.join(name[:12] for name in changed)}",
            "no action needed: the next run that uses one rebuilds it",
        )
    else:
        yield Finding(
            "caches", "ok", f"{len(trees)} trees match their digests, and no environment was changed"
        )


def check_blobs(home: Home) -> Iterator[Finding]:
    """Checks the blobs of the server."""
    from hopyard.api_client.local_server import connect

    client, after, damaged, size = connect(start=False, home=home), None, list[str](), 0
    while True:
        result = client.scrub_blobs({"after": after})
        size += result["size_bytes"]
        damaged += result["damaged"]
        after = result["last"]
        if after is None:
            break
    lost = [digest for digest in result["lost"] if digest not in damaged]
    if damaged:
        yield Finding(
            "blobs",
            "fail",
            f"damaged, and set aside: {', '.join(digest[:12] for digest in damaged)}",
            _DAMAGED_BLOB_HINT,
        )
    if lost:
        more = result["lost_count"] - len(result["lost"])
        yield Finding(
            "blobs",
            "fail",
            f"in use, and not here: {', '.join(digest[:12] for digest in lost)}"
            + (f" and {more} more" if more else ""),
            _DAMAGED_BLOB_HINT,
        )
    if not damaged and not lost:
        yield Finding("blobs", "ok", f"{console.format_bytes(size)} are what their digests say")


CHECKS: tuple[Callable[[Home], Iterator[Finding]], ...] = (
    check_home,
    check_disk,
    check_settings,
    check_server,
    check_database,
    check_limits,
    check_privacy,
    check_gpu,
    check_tools,
    check_containers,
    check_python,
)
