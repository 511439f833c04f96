"""What happens after a run was submitted: it is announced, followed, left alone on Ctrl-C, and its end is
told."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from hopyard.cli import console
from hopyard.cli.address import Run, address, ending, exit_code, final, standing, values_line
from hopyard.cli.remarks import tell_remarks
from hopyard.errors import HopyardError
from hopyard.sdk.client import Client

if TYPE_CHECKING:
    from hopyard.cli.follow import Follower
    from hopyard.cli.statusline import StatusLine

_DETACHED = 130  # as a shell says of a command that Ctrl-C ended
_SECOND_CHANCE_S = 2.0


def finish(client: Client, run: Run, *, detach: bool, as_json: bool) -> int:
    """Announce a submitted run and, unless `detach`, follow it to its end. The exit code of the command."""
    tell_remarks(run)
    console.say(f"run {run['name']}  {address(client, run)}  {standing(run)}")
    if detach:
        if as_json:
            console.out_json(result(client, run))
        elif not console.is_terminal(sys.stdout):
            console.out(run["name"])  # so that a script can keep it: RUN=$(hop run --detach …)
        return 0
    return _follow(client, run, as_json=as_json)


def result(client: Client, run: Run) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "id": run["id"],
        "name": run["name"],
        "url": address(client, run),
        "phase": run["phase"],
        "run": run,
    }


def _follow(client: Client, run: Run, *, as_json: bool) -> int:
    from hopyard.cli.follow import Follower
    from hopyard.cli.output import Output, OutputGone
    from hopyard.cli.statusline import StatusLine

    line = StatusLine()
    size = sum(role["replicas"] for role in run["spec"]["roles"])
    follower = Follower(client, run, output=Output(line, replicas=size, all_to_stderr=as_json), line=line)
    try:
        ended = until_the_end(follower, line)
    except OutputGone:
        raise BrokenPipeError from None
    finally:
        line.close()
    if as_json:
        console.out_json(result(follower.client, ended or follower.run))
    if ended is None:
        return _DETACHED
    tell_end(ended)
    return exit_code(ended)


def until_the_end(follower: Follower, line: StatusLine) -> Run | None:
    """The run as it ended; None when Ctrl-C left it."""
    asked = False
    while True:
        try:
            ended = follower.follow()
            line.end_line()
            return ended
        except KeyboardInterrupt:
            if final(follower.run):
                line.end_line()
                return follower.run
            with line.hidden():
                if asked or not _stop_wanted(follower.run):
                    return None
            asked = True
            _stop(follower.client, follower.run)


def _stop_wanted(run: Run) -> bool:
    """Tell how to come back; on a second Ctrl-C ask whether to stop the run."""
    name = run["name"]
    look = "" if run["spec"].get("study") is None else f"Its trials: hop search show {name}   "
    console.say(f"{name} goes on.  {look}Come back: hop logs -f {name}   End it: hop stop {name}")
    if not (console.is_terminal(sys.stdin) and console.is_terminal(sys.stderr)):
        return False
    try:
        sys.stderr.write("(Ctrl-C again to stop the run) ")
        sys.stderr.flush()
        time.sleep(_SECOND_CHANCE_S)
        if console.can_draw(sys.stderr):
            sys.stderr.write("\r\x1b[2K")  # the offer has lapsed
        else:
            console.say()
        return False
    except KeyboardInterrupt:
        sys.stderr.write(f"\nstop {name}? [y/N] ")
        sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        console.say()
        return False


def _stop(client: Client, run: Run) -> None:
    try:
        client.post(f"/runs/{run['id']}/stop", {"grace_s": 10})
    except HopyardError as refused:
        console.say(f"error: {refused.message}")


def tell_end(run: Run) -> None:
    """Tell how a run ended, what came of it, and what of it could not be stored."""
    values = values_line(run.get("summary") or {})
    phase = console.paint_phase(run["phase"], sys.stderr)
    console.say(
        f"{run['name']} {ending(run).replace(run['phase'], phase, 1)}" + (f"  {values}" if values else "")
    )
    for sentence in run.get("unstored") or ():
        console.say(f"warning: {sentence}")
