"""Finds the server that commands use, and starts the embedded server if there is none.

The order: `HOPYARD_URL` with `HOPYARD_TOKEN`, the login file of the home folder, the home folder's embedded
server. Modules that only the start of a server needs are imported late.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hopyard.api_client.client import Client
from hopyard.api_client.home_socket import ForeignServer, dial, home_client, loopback_port, socket_peer
from hopyard.api_client.run_access import find_replica_folder, read_run_access
from hopyard.config.home import HOME_VARIABLE, Home
from hopyard.errors import AuthError, HopyardError, ServerUnavailable, SpecError, UsageError
from hopyard.file_locks import is_locked
from hopyard.private_files import make_folder, open_file

if TYPE_CHECKING:
    from subprocess import Popen

URL_VARIABLE, TOKEN_VARIABLE = "HOPYARD_URL", "HOPYARD_TOKEN"
_REMOTE_SERVER_HINT = "check the address in {where}, and that this machine can reach it"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_NOTICE_AFTER_S = 0.5
_POLL_INTERVAL_S = 0.01
_TAIL_LINES = 12
_MAX_KILLED_STARTS = 3  # servers that were killed while they started, before that is an error
_SERVER_MODULE = "hopyard.app"
_UNKNOWN_URL = "http://127.0.0.1:1"  # until the address is read from the server; no request goes there
_FOREIGN_SERVER_HINTS = ("no token was sent; find the program at the address and end it, then run `hop up`",)
# kept, because Python warns of a child without a reference; these outlive this process
_child_servers: list[Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running embedded server, as in `server.json` or in its own response.
    warning: a sentence for its owner; "" for none."""

    pid: int
    url: str
    version: str
    started_at: str
    warning: str = ""


def connect(*, start: bool = True, home: Home | None = None) -> Client:
    """Returns a client of the server that this user works with. start: starts the embedded server if none
    runs.

    Inside a run the default is the run's own server, with the run's own token; no server is started there.
    Raises ServerUnavailable if there is no server (or it does not start), AuthError for an address without a
    token.
    """
    replica = find_replica_folder() if home is None and HOME_VARIABLE not in os.environ else None
    if replica is not None and not (os.environ.get(URL_VARIABLE) and os.environ.get(TOKEN_VARIABLE)):
        return read_run_access(replica).client()
    home = home or Home.default()
    home.check()
    url, token, login = (
        _url_from_environment(),
        _clean_token(os.environ.get(TOKEN_VARIABLE)),
        read_login(home),
    )
    if url and not token:
        if login is not None and login[0] == url.rstrip("/"):
            token = login[1]
        elif not _is_home_server(home, url):
            raise AuthError(
                f"{URL_VARIABLE} is set to {url}, but there is no token for it",
                hints=(f"set {TOKEN_VARIABLE}",),
            )
    if url and token:
        return Client(url, token, hint=_REMOTE_SERVER_HINT.format(where=URL_VARIABLE))
    if login is not None and not url:
        return Client(*login, hint=_REMOTE_SERVER_HINT.format(where=home.login_file))
    running = _find_by_socket(home)
    if running is not None:
        return running
    if not start:
        if is_server_alive(home):
            pid = _lock_holder(home)
            named = f" (pid {pid})" if pid else ""
            raise ServerUnavailable(
                f"the server{named} of {home.root} does not answer",
                hints=(f"try again later; its log is {home.server_log}",),
            )
        raise ServerUnavailable(f"no server runs for {home.root}", hints=("run `hop up` to start it",))
    server = start_server(home)
    if server.warning:
        print(f"warning: {server.warning}", file=sys.stderr)
    return _client(home, server)


def remote_url(home: Home) -> str | None:
    """Returns the address of the server that this user works with; None for the home folder's own server."""
    url = _url_from_environment()
    login = None if url else read_login(home)
    return url or (None if login is None else login[0])


def check_own_server(home: Home) -> None:
    """Raises UsageError if this user works with another server than the home folder's own, by variables of
    the shell or a login file. A command that starts, ends or copies the home's server would then act on the
    wrong server."""
    url = _url_from_environment()
    if url is not None:
        if os.environ.get(TOKEN_VARIABLE) or not _is_home_server(home, url):
            hint = (
                "start and stop that server on its machine; for the server of this home, run `unset "
                f"{URL_VARIABLE} {TOKEN_VARIABLE}`"
            )
            raise UsageError(f"this shell uses the server at {url}", hints=(hint,))
        return
    login = read_login(home)
    if login is not None:
        hint = (
            "start and stop that server on its machine; for the server of this home, move "
            f"{home.login_file} away or set {HOME_VARIABLE}"
        )
        raise UsageError(f"this home uses the server at {login[0]}", hints=(hint,))


def _url_from_environment() -> str | None:
    """Returns HOPYARD_URL. Inside a run it counts only together with a token: alone, it names the
    server of the run."""
    is_own_server = not os.environ.get(TOKEN_VARIABLE) and find_replica_folder() is not None
    return None if is_own_server else os.environ.get(URL_VARIABLE)


def _clean_token(token: str | None) -> str:
    """Returns a token without the line feed and the byte order mark of the file that it was copied from."""
    return (token or "").strip().strip("\ufeff").strip()


def _is_home_server(home: Home, url: str) -> bool:
    """Returns whether the address is that of the home's own server, which is then found as without it."""
    embedded = home.read_server()
    return (
        embedded is not None
        and str(embedded["url"]).rstrip("/") == url.rstrip("/")
        and home.token_file.exists()
    )


# -- the login file ------------------------------------------------------------------------------------------


def read_login(home: Home) -> tuple[str, str] | None:
    """Returns address and token of the team's server that this home uses; None for the embedded server."""
    try:
        data = home.login_file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # an error of the home is raised where the home is used
        return None
    except OSError as error:
        hint = "make it readable, or set HOPYARD_HOME to another folder"
        raise SpecError(f"{home.login_file} cannot be read: {error.strerror}", hints=(hint,)) from error
    try:
        login = json.loads(data)
        return str(login["url"]).strip().rstrip("/"), _clean_token(str(login["token"]))
    except (ValueError, KeyError, TypeError) as error:
        hint = 'write it as {"url": "…", "token": "…"}, or remove it to use the embedded server'
        raise SpecError(f"{home.login_file} is damaged", hints=(hint,)) from error


# -- finding -------------------------------------------------------------------------------------------------


def find_server(home: Home) -> RunningServer | None:
    """Returns the embedded server of `home`; None if it does not answer. Raises ServerUnavailable if another
    program uses its socket."""
    client = home_client(home, "", url=_UNKNOWN_URL, timeout_s=5.0)
    try:
        client.use_socket(dial(home, 5.0))
        health = client.get_health()
        return RunningServer(
            int(health["pid"]),
            str(health["url"]),
            str(health["version"]),
            str(health["started_at"]),
            _warning(home),
        )
    except ForeignServer as error:
        raise ServerUnavailable(str(error), hints=_FOREIGN_SERVER_HINTS) from error
    except (HopyardError, OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        client.close()


def _warning(home: Home) -> str:
    """Returns the server's warning for its owner, from the home's own file: other users do not see it."""
    return str((home.read_server() or {}).get("warning", ""))


def _find_by_socket(home: Home) -> Client | None:
    """As `find_server`; sends no request if the socket and the home's own file name the same process."""
    try:
        sock = dial(home, 2.0)
    except ForeignServer as error:
        raise ServerUnavailable(str(error), hints=_FOREIGN_SERVER_HINTS) from error
    except OSError:
        return None
    server = _read_server_file(home)
    if server is None or (sock.family is socket.AF_UNIX and socket_peer(sock).pid != server.pid):
        server = find_server(home)
        if server is None:
            sock.close()
            return None
    _warn_of_version(server)
    try:
        client = _client(home, server)
    except BaseException:
        sock.close()
        raise
    client.use_socket(sock)
    return client


def _client(home: Home, server: RunningServer) -> Client:
    token = home.read_token()
    if token is None:
        raise AuthError(
            f"the server's token is missing: {home.token_file}",
            hints=("run `hop down` and `hop up` to write it again",),
        )
    return home_client(home, token, url=server.url)


def _read_server_file(home: Home) -> RunningServer | None:
    record = home.read_server()
    if (
        record is None
        or not isinstance(record.get("pid"), int)
        or record["pid"] <= 0
        or not loopback_port(record["url"])
    ):
        return None
    return RunningServer(
        record["pid"],
        str(record["url"]),
        str(record.get("version", "")),
        str(record.get("started_at", "")),
        str(record.get("warning", "")),
    )


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[:1] == [b"Z"]


def _is_server(pid: int, home: Home) -> bool:
    """Returns whether the process is a server of this home, by its command line; False if that cannot be
    read."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return _SERVER_MODULE.encode() in words and os.fsencode(home.root) in words


def _warn_of_version(server: RunningServer) -> None:
    from hopyard import __version__

    if server.version and server.version != __version__:
        note = (
            f"note: the server runs hopyard {server.version}, this is {__version__}; "
            "run `hop down --keep-runs` and `hop up` to update it; its runs continue"
        )
        print(note, file=sys.stderr)


# -- starting ------------------------------------------------------------------------------------------------


def start_server(
    home: Home, *, command: Sequence[str] | None = None, timeout_s: float = START_TIMEOUT_S
) -> RunningServer:
    """Returns the embedded server of `home`; starts it (in a session of its own) unless it runs already.

    There are never two: processes that start one take turns, and the server holds a lock while it lives.
    command: the default is this interpreter with `-m hopyard.app --home HOME`. Raises ServerUnavailable, with
    the end of the server's log as its hint; inside a run always.
    """
    if find_replica_folder() is not None:
        raise ServerUnavailable(
            f"no server runs for {home.root}, and a run cannot start one",
            hints=("start it outside of runs: `hop up`",),
        )
    _create_home(home)
    deadline = time.monotonic() + timeout_s
    notice, killed = _SlowNotice(), 0
    with _start_lock(home, deadline):
        while True:
            running = find_server(home)
            if running is not None:
                return running
            log_size = home.server_log.stat().st_size if home.server_log.exists() else 0
            child = _spawn(home, command or (sys.executable, "-m", _SERVER_MODULE, "--home", str(home.root)))
            contended = is_server_alive(home)  # the child cannot hold the lock yet
            server = _wait_until_ready(home, child, deadline, notice)
            if server is not None:
                return server
            if child.poll() is None:
                child.terminate()
                timed_out = ServerUnavailable(
                    f"the server did not answer within {timeout_s:.0f} s", hints=_log_hints(home, log_size)
                )
                raise _server_stuck_error(home, timeout_s) if contended else timed_out
            if contended:
                _check_reachable(home)
            # The child ended: it failed, it was killed, or the home still belongs to another server that ends
            # or has just started.
            killed += child.returncode < 0
            another = child.returncode == 0 or contended or is_server_alive(home)
            if (
                not (another or (child.returncode < 0 and killed < _MAX_KILLED_STARTS))
                or time.monotonic() > deadline
            ):
                raise (
                    _server_stuck_error(home, timeout_s)
                    if another
                    else _start_error(home, log_size, child.returncode)
                )
            time.sleep(_POLL_INTERVAL_S * 10)


def is_server_alive(home: Home) -> bool:
    """Returns whether a server of the home lives, even if it does not answer."""
    with suppress(OSError):
        return is_locked(home.server_lock)
    return False


def _lock_holder(home: Home) -> int:
    """Returns the process that holds the home, from the number in the lock file; 0 if it is unknown."""
    try:
        return int(home.server_lock.read_text() or 0)
    except (OSError, ValueError):
        return 0


def _check_reachable(home: Home) -> None:
    """Raises ServerUnavailable if the server that holds the home is of a version without a socket: it would
    never be found."""
    server = _read_server_file(home)
    record = home.read_server() or {}
    if (
        server is not None
        and "place" not in record
        and not _lock_holder(home)
        and _is_server(server.pid, home)
    ):
        hint = "run `hop down --keep-runs` and `hop up` to update it; its runs continue"
        raise ServerUnavailable(
            f"the server (pid {server.pid}) is of an older version, hopyard {server.version}", hints=(hint,)
        )


def _server_stuck_error(home: Home, timeout_s: float) -> ServerUnavailable:
    """Returns the error of a home whose server neither answers nor ends."""
    pid = _lock_holder(home)
    named = f" (pid {pid})" if pid else ""
    return ServerUnavailable(
        f"the server{named} has not answered for {timeout_s:.0f} s",
        hints=(f"its log is {home.server_log}; run `hop down` to end it",),
    )


def _create_home(home: Home) -> None:
    try:
        home.create()
        make_folder(home.server_log.parent)
    except OSError as error:
        hint = "set HOPYARD_HOME to another folder"
        raise ServerUnavailable(f"{home.root} cannot be used: {error.strerror}", hints=(hint,)) from error


@contextmanager
def _start_lock(home: Home, deadline: float) -> Iterator[None]:
    """Holds `start.lock`."""
    descriptor = open_file(home.start_lock, os.O_RDWR | os.O_CREAT)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServerUnavailable(
                        "another process has been starting the server for too long"
                    ) from None
                time.sleep(_POLL_INTERVAL_S)
        yield
    finally:
        os.close(descriptor)


def _spawn(home: Home, command: Sequence[str]) -> Popen[bytes]:
    import subprocess

    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOPYARD_")} | {
        HOME_VARIABLE: str(home.root)
    }
    log = open_file(home.server_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home.root,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ServerUnavailable(f"the server could not be started: {error}") from error
    finally:
        os.close(log)
    _child_servers.append(child)
    return child


def _wait_until_ready(
    home: Home, child: Popen[bytes], deadline: float, notice: _SlowNotice
) -> RunningServer | None:
    """Returns the server when it answers; None when the child has ended or the deadline has passed."""
    while time.monotonic() < deadline:
        if home.server_file.exists():
            server = find_server(home)
            if server is not None:
                return server
        if child.poll() is not None:
            return None
        notice.show_if_due()
        time.sleep(_POLL_INTERVAL_S)
    return None


class _SlowNotice:
    """Prints once that a server is starting, if the start takes long."""

    def __init__(self) -> None:
        self._since, self._shown = time.monotonic(), False

    def show_if_due(self) -> None:
        if not self._shown and time.monotonic() - self._since > _NOTICE_AFTER_S:
            self._shown = True
            print("starting the embedded server…", file=sys.stderr, flush=True)


def _start_error(home: Home, since: int, code: int) -> ServerUnavailable:
    """Returns the error of a server that ended at once: its own error message, or else the end of its log."""
    lines = _log_lines(home, since)
    last = max((at for at, line in enumerate(lines) if line.startswith("error: ")), default=None)
    if last is None:
        return ServerUnavailable(
            f"the server could not be started (exit {code})", hints=_log_hints(home, since)
        )
    hints = [line.removeprefix("hint: ") for line in lines[last + 1 :] if line.startswith("hint: ")]
    return ServerUnavailable(
        f"the server could not be started: {lines[last].removeprefix('error: ')}",
        hints=(*hints, f"its log is {home.server_log}"),
    )


def _log_lines(home: Home, since: int) -> list[str]:
    """Returns the lines of the server's log after byte `since`, at most the last 8 KiB."""
    try:
        with open(home.server_log, "rb") as log:
            log.seek(since)
            return log.read()[-8192:].decode(errors="replace").strip().splitlines()
    except OSError:
        return []


def _log_hints(home: Home, since: int) -> tuple[str, ...]:
    """Returns the last lines of `_log_lines` as hints."""
    lines = _log_lines(home, since)
    ending = ("its log ends with:\n" + "\n".join(lines[-_TAIL_LINES:]),) if lines else ()
    return (*ending, f"the whole log is {home.server_log}")


# -- stopping ------------------------------------------------------------------------------------------------


def stop_server(
    home: Home, *, runs: Literal["refuse", "keep", "stop"] = "refuse", timeout_s: float = STOP_TIMEOUT_S
) -> bool:
    """Ends the embedded server and waits until it has ended. Returns whether there was one.

    runs: `refuse` raises Conflict if there are live runs; `keep` lets them continue, for the next server;
    `stop` stops them. A server that no longer answers is ended by a signal. Raises ServerUnavailable if it
    does not end.
    """
    home.check()
    server = find_server(home)
    record = _read_server_file(home)
    pid = server.pid if server is not None else _lock_holder(home) or (0 if record is None else record.pid)
    if not pid or not _process_exists(pid):
        return False
    if server is not None:
        with suppress(ServerUnavailable):  # it may end before it has answered
            _client(home, server).shutdown({"runs": runs})
    elif _is_server(pid, home):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    else:
        return False
    deadline = time.monotonic() + timeout_s
    while _process_exists(pid):
        if time.monotonic() > deadline:
            raise ServerUnavailable(f"the server (pid {pid}) does not end", hints=(f"see {home.server_log}",))
        time.sleep(_POLL_INTERVAL_S)
    _reap(pid)
    return True


def _reap(pid: int) -> None:
    """Collects the exit status of a server that this process started."""
    for child in [c for c in _child_servers if c.pid == pid]:
        child.wait()
        _child_servers.remove(child)
