"""`hop reserve`: capacity that is reserved for users or a queue, for a time."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click
from click.shell_completion import CompletionItem

from hopyard.cli.batch import apply_to_each, unique
from hopyard.cli.options import extras_option, gpu_memory_option, json_option, pool_option, where_option
from hopyard.cli.terminal import console
from hopyard.errors import NotFound, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_SHAPE_HINT = "name whole nodes: --nodes n1,n2; or give resources and a count: --gpus A100:8 --count 2"
_OPTIONS = {
    "start_at": "--from",
    "every_s": "--every",
    "until": "--until",
    "nodes": "--nodes",
    "count": "--count",
    "users": "--user",
    "queue": "--queue",
    "where.pools": "--pool",
    "where.labels": "--where",
}


class ReserveGroup(click.Group):
    """`hop reserve NAME …` is `hop reserve add NAME …`: a word that is not a command is a name."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name if cmd_name in self.commands else "add")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return super().resolve_command(ctx, ["add", *args])
        return super().resolve_command(ctx, args)


@click.group("reserve", cls=ReserveGroup, no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def reserve(ctx: click.Context) -> None:
    """Reserve nodes or resources for users or a queue, once or repeatedly.

    `hop reserve NAME …` is short for `hop reserve add NAME …`. A reservation is granted at once, or refused
    with its conflicts. During a reservation only its owner's runs use the reserved capacity. Other runs that
    would overlap with it are not started.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def complete_reservation(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Returns the names of reservations, if a server runs."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        reservations = list(connect(start=False).iterate_reservations())
    except HopyardError:
        return []
    return [
        CompletionItem(reservation["name"])
        for reservation in reservations
        if reservation["name"].startswith(incomplete)
    ]


@reserve.command("add")
@click.argument("name", metavar="NAME")
@click.option(
    "--from",
    "begin",
    metavar="TIME",
    default="now",
    show_default=True,
    help='Begin: "2026-12-01 09:00", "tomorrow 09:00", monday 9:00, +2h.',
)
@click.option("--for", "lasts", metavar="SPAN", help="Duration: 4h, 90m, 2d.")
@click.option("--to", "end", metavar="TIME", help="End, instead of --for.")
@click.option("--nodes", metavar="NODE,...", help="These nodes, as a whole.")
@click.option(
    "--count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of pieces of --gpus, --cpus …, each on one node.",
)
@click.option("--gpus", metavar="[MODEL:]N", help="GPUs per piece, or a share of one: 0.5.")
@gpu_memory_option
@click.option("--cpus", metavar="N", help="CPUs per piece.  [default: 1 per GPU]")
@click.option("--memory", metavar="SIZE", help="Memory per piece: 64G.")
@extras_option
@pool_option
@where_option
@click.option("--user", "users", metavar="NAME,...", help="Users whose runs may use it.")
@click.option(
    "-q", "--queue", metavar="QUEUE", help="The queue whose runs may use it, with all queues below."
)
@click.option(
    "--every",
    metavar="day|week|SPAN",
    help=(
        "Repeat after this time; whole days keep the local time of day across clock changes.  [default: once]"
    ),
)
@click.option("--until", metavar="TIME", help="Last repetition.  [default: none]")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the reservation and show its place and its effects, without reserving.",
)
@json_option
def add_reservation(
    name: str, begin: str, lasts: str | None, end: str | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Reserve NAME. Times without an offset are in the zone of this machine.

    The server's owner may reserve for all users, administrators of a queue for that queue.
    """
    from hopyard.api_client.local_server import connect

    body = reservation_request(name, begin, lasts, end, given, datetime.now().astimezone())
    try:
        answer = connect().create_reservation(body, dry_run=int(dry_run))
    except UsageError as error:
        raise _option_error(error, lasts) from error
    if as_json:
        console.print_json(answer)
        return
    for warning in answer["warnings"]:
        console.print_message(f"warning: {warning}")
    console.print_message(
        f"{'would reserve' if dry_run else 'reserved'} {reservation_sentence(answer['reservation'])}"
    )
    if dry_run:
        console.print_message("dry run: nothing was reserved")


def reservation_request(
    name: str, begin: str, duration: str | None, end: str | None, options: dict[str, Any], now: datetime
) -> api.ReservationIn:
    """Returns the request to the server. Raises SpecError."""
    from hopyard.config.reservation_times import parse_recurrence, parse_start_time
    from hopyard.config.units import parse_time
    from hopyard.domain.ids import check_name

    check_name(name, subject="NAME")
    if name in reserve.commands:
        raise SpecError(f"NAME: `{name}` is a command of `hop reserve`", hints=("choose another name",))
    if duration is None and end is None:
        raise SpecError("--for: the duration is missing; give --for or --to", hints=("for example --for 4h",))
    if duration is not None and end is not None:
        raise SpecError("--for: --to already gives the end", hints=("give one of the two",))
    start = parse_start_time(begin, now)
    stop = (
        _add_seconds(start, parse_time(duration, what="--for"))
        if duration is not None
        else parse_start_time(end or "", now, what="--to")
    )
    body: api.ReservationIn = {
        "name": name,
        "start_at": start.isoformat(),
        "end_at": stop.isoformat(),
    }
    _add_capacity(body, options)
    body["users"] = [
        check_name(user.strip(), subject="--user")
        for user in (options["users"] or "").split(",")
        if user.strip()
    ]
    if options["queue"] is not None:
        body["queue"] = check_name(options["queue"], subject="--queue")
    if not body["users"] and options["queue"] is None:
        raise SpecError(
            "--user: the owner is missing; give --user or --queue",
            hints=("for example --user alice, or --queue vision",),
        )
    if options["every"] is not None:
        body["every_s"] = parse_recurrence(options["every"])
        body["zone"] = local_zone()
    if options["until"] is not None:
        body["until"] = parse_start_time(options["until"], now, what="--until").isoformat()
    return body


def local_zone() -> str:
    """Returns the name of this machine's time zone, "" if unknown: repetitions keep its time of day."""
    from zoneinfo import available_timezones

    link = os.path.realpath("/etc/localtime")
    zone = os.environ.get("TZ", "").removeprefix(":") or link.partition("/zoneinfo/")[2]
    return zone if zone in available_timezones() else ""


def _option_error(error: UsageError, duration: str | None) -> UsageError:
    """Returns the server's error with the option in place of the request field."""
    field, colon, rest = error.message.partition(": ")
    options = _OPTIONS | {"end_at": "--to" if duration is None else "--for"}
    parts = field.split(".")
    option = options.get(".".join(parts[:2])) or options.get(parts[0])
    return type(error)(f"{option}: {rest}", hints=error.hints) if colon and option else error


def _add_seconds(start: datetime, seconds: float) -> datetime:
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        raise SpecError(
            "--from: it begins more than five years ahead", hints=("choose an earlier time",)
        ) from None


def _add_capacity(body: api.ReservationIn, options: dict[str, Any]) -> None:
    """Adds the nodes, or the resources and where they are. Raises SpecError."""
    from hopyard.config.run_request import parse_placement, parse_sizes
    from hopyard.domain.ids import check_name

    sizes = parse_sizes({**options, "replicas": None, "nodes": None})  # those are numbers of a run
    places = parse_placement(options)
    if (options["nodes"] is None) == (not sizes):
        both = "are reserved as a whole: leave out their resources" if sizes else "no resources are given"
        raise SpecError(f"--nodes: {both}", hints=(_SHAPE_HINT,))
    if options["nodes"] is not None:
        beside = [
            option for option, name in (("--pool", "pools"), ("--where", "labels")) if places.get(name)
        ] + ["--count"] * (options["count"] > 1)
        if beside:
            raise SpecError(
                f"{beside[0]}: --nodes already names the nodes",
                hints=("leave it out, or give resources: --gpus A100:8 --pool big",),
            )
        body["nodes"] = [
            check_name(node.strip(), subject="--nodes")
            for node in options["nodes"].split(",")
            if node.strip()
        ]
        return
    sizes.pop("cpu_limited", None)
    sizes.setdefault("cpu_milli", 1000 * max(sizes.get("gpus", 0), 1))
    body["resources"], body["count"] = cast("api.ResourcesIn", sizes), options["count"]
    body["where"] = {
        "pools": list(places.get("pools", ())),
        "labels": [list(pair) for pair in places.get("labels", ())],
    }


@reserve.command("ls")
@click.option("-a", "--all", "everything", is_flag=True, help="Also ended reservations.")
@json_option
def list_reservations(everything: bool, as_json: bool) -> None:
    """List current and coming reservations."""
    from hopyard.api_client.local_server import connect

    reservations = [
        reservation
        for reservation in connect().iterate_reservations()
        if everything or reservation["next_start_at"]
    ]
    if as_json:
        console.print_json(reservations)
    elif not reservations:
        console.print_message(
            "no reservations" + ("" if everything else "; use `-a` to include ended reservations")
        )
    else:
        console.print_lines(reservation_table(reservations))


@reserve.command("info")
@click.argument("name", metavar="NAME", shell_complete=complete_reservation)
@json_option
def show_reservation(name: str, as_json: bool) -> None:
    """Show all details of a reservation."""
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import check_name

    reservation = connect().get_reservation(check_name(name, subject="NAME"))
    if as_json:
        console.print_json(reservation)
    else:
        console.print_lines(reservation_lines(reservation))


@reserve.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_reservation)
@json_option
def remove_reservations(names: tuple[str, ...], as_json: bool) -> None:
    """Remove reservations; their capacity is free at once."""
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import check_name

    client = connect()
    reservations = []
    for name in names:  # all are looked up before any is given up
        try:
            reservations.append(client.get_reservation(check_name(name, subject="NAME")))
        except NotFound as error:
            others = ("nothing was removed: leave it out to remove the others",) if len(names) > 1 else ()
            raise NotFound(error.message, hints=(*error.hints, *others)) from error
    each = unique(reservations, "name")
    apply_to_each(
        each,
        lambda reservation: client.delete_reservation(reservation["name"]),
        format_result=lambda reservation, _: f"removed {reservation['name']}",
        as_json=as_json,
    )


def reservation_table(reservations: list[api.ReservationOut]) -> list[str]:
    """Returns the lines of the table, head first. The column of repetitions appears if any reservation
    repeats."""
    again = any(reservation["every_s"] for reservation in reservations)
    rows = [
        [
            reservation["name"],
            time_text(reservation),
            *[recurrence_text(reservation) or "once"] * again,
            owner_text(reservation),
            capacity_text(reservation),
        ]
        for reservation in reservations
    ]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.format_table(["NAME", "WHEN", *["REPEATS"] * again, "FOR", "WHAT"], rows, width=width)


def reservation_lines(reservation: api.ReservationOut) -> list[str]:
    from hopyard.cli.terminal.times import format_clock, format_interval

    begin, end = (
        reservation["next_start_at"] or reservation["start_at"],
        reservation["next_end_at"] or reservation["end_at"],
    )
    lines = [
        ("name", reservation["name"]),
        (
            "when",
            time_text(reservation)
            if reservation["active"] or not reservation["next_start_at"]
            else format_interval(begin, end),
        ),
        (
            "repeats",
            f"{again}, since {format_clock(reservation['start_at'])}"
            if (again := recurrence_text(reservation))
            else "",
        ),
        ("for", owner_text(reservation)),
        ("what", capacity_text(reservation)),
        (
            "made",
            f"{format_clock(reservation['created_at'])} by {reservation['created_by']}"
            if reservation["created_at"]
            else "",
        ),
    ]
    return [f"{console.paint(label.ljust(9), 'dim')}{text}" for label, text in lines if text]


def time_text(reservation: api.ReservationOut) -> str:
    """Returns `now, until 13:00`, `2026-12-01 09:00 for 4h` or `over`; for a repetition the next time."""
    from hopyard.cli.terminal.times import format_clock
    from hopyard.config.units import format_time

    if reservation["active"]:
        return f"now, until {format_clock(reservation['next_end_at'] or reservation['end_at'])}"
    if not reservation["next_start_at"]:
        return "over"
    length = datetime.fromisoformat(reservation["end_at"]) - datetime.fromisoformat(reservation["start_at"])
    return (
        f"{format_clock(reservation['next_start_at'])} for "
        f"{format_time(60 * round(length.total_seconds() / 60))}"
    )


def reservation_sentence(reservation: api.ReservationOut) -> str:
    from hopyard.cli.terminal.times import format_interval

    again = recurrence_text(reservation)
    return (
        f"{reservation['name']}: "
        f"{format_interval(reservation['start_at'], reservation['end_at'])}{f', {again}' if again else ''}, "
        f"{capacity_text(reservation)}, for {owner_text(reservation)}"
    )


def brief_text(reservation: api.ReservationOut) -> str:
    """Returns `exam  now, until 13:00, for alice`, without the reserved capacity."""
    again = recurrence_text(reservation)
    return (
        f"{reservation['name']}  {time_text(reservation)}{f', {again}' if again else ''}, for "
        f"{owner_text(reservation)}"
    )


def recurrence_text(reservation: api.ReservationOut) -> str:
    """`every day`, `every week until 2027-01-01 00:00`; "" for once."""
    from hopyard.cli.terminal.times import format_clock
    from hopyard.config.units import format_time

    if not reservation["every_s"]:
        return ""
    word = {86400.0: "day", 604800.0: "week"}.get(reservation["every_s"]) or format_time(
        reservation["every_s"]
    )
    return f"every {word}" + (f" until {format_clock(reservation['until'])}" if reservation["until"] else "")


def owner_text(reservation: api.ReservationOut) -> str:
    return ", ".join(
        [*reservation["users"], *([f"queue {reservation['queue']}"] if reservation["queue"] else [])]
    )


def capacity_text(reservation: api.ReservationOut) -> str:
    """`n1, n2`, or `2 x A100:8, 8 CPUs on n1, n2`."""
    from hopyard.config.units import format_cpus, format_memory

    nodes, resources = ", ".join(reservation["nodes"]), reservation["resources"]
    if resources is None:
        return nodes
    parts = []
    models = "|".join(resources["gpu_models"])
    if resources["gpus"] or resources["gpu_milli"]:
        number = str(resources["gpus"] or resources["gpu_milli"] / 1000)
        parts.append((f"{models}:{number}" if models else number) + " GPU" + "s" * (number != "1"))
    if resources["gpu_memory_bytes"]:
        parts.append(f"{format_memory(resources['gpu_memory_bytes'])} of a GPU's memory")
    if resources["cpu_milli"]:
        parts.append(f"{format_cpus(resources['cpu_milli'])} CPU" + "s" * (resources["cpu_milli"] != 1000))
    parts += [f"{format_memory(resources['memory_bytes'])} memory"] if resources["memory_bytes"] else []
    parts += [f"{amount} {name}" for name, amount in resources["extras"]]
    return f"{sum(reservation['pieces'])} x {', '.join(parts)} on {nodes}"
