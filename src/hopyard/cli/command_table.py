"""Every command by name: where it lives and what it does in one line.

The listing of `hop --help` and shell completion are drawn from this table, so that no command is imported to
be named.
"""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """`target` is module:attribute below `hopyard.cli`."""

    name: str
    section: str
    target: str
    summary: str


RUN_SECTION, INSPECT_SECTION, DATA_SECTION, SERVER_SECTION = "Run", "Look", "Data and results", "Server"

COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry(
        "run", RUN_SECTION, "run:run", "Run a script, a command or a hop.yaml; follow it until it ends."
    ),
    CommandEntry(
        "search",
        RUN_SECTION,
        "studies.command:search",
        "Search hyperparameters: start a study, see it, draw it, replay it.",
    ),
    CommandEntry(
        "fork", RUN_SECTION, "fork:fork", "Run again with changes: same code, data and environment."
    ),
    CommandEntry(
        "update",
        RUN_SECTION,
        "update:update",
        "Change runs that wait, hold and release them; name, tag and note any run.",
    ),
    CommandEntry("stop", RUN_SECTION, "stop:stop", "End runs, giving them time to save."),
    CommandEntry("rm", RUN_SECTION, "rm:rm", "Delete ended runs and all that only they need."),
    CommandEntry("ps", INSPECT_SECTION, "ps:ps", "List runs: those alive, or all with -a."),
    CommandEntry("logs", INSPECT_SECTION, "logs:logs", "Print what a run wrote; -f follows it."),
    CommandEntry("plot", INSPECT_SECTION, "plot:plot", "Draw metrics in the terminal or as a PNG."),
    CommandEntry("info", INSPECT_SECTION, "info:info", "Tell everything about one run."),
    CommandEntry(
        "why", INSPECT_SECTION, "why:why", "Tell why a run waits, when it starts, and what would be sooner."
    ),
    CommandEntry(
        "diff",
        INSPECT_SECTION,
        "diff:diff",
        "Compare two runs: code, parameters, environment, data, results.",
    ),
    CommandEntry(
        "simulate",
        INSPECT_SECTION,
        "simulation.command:simulate",
        "Play a workload on a cluster: waits, use, fairness; what more nodes would do.",
    ),
    CommandEntry(
        "dataset",
        DATA_SECTION,
        "dataset:dataset",
        "Push, list, pull and remove datasets; their leaderboards.",
    ),
    CommandEntry("board", DATA_SECTION, "leaderboard:board", "Show the leaderboard of a dataset."),
    CommandEntry("pull", DATA_SECTION, "pull:pull", "Fetch code, checkpoint, files and logs of a run."),
    CommandEntry("sync", DATA_SECTION, "sync:sync", "Upload runs that were recorded without a server."),
    CommandEntry(
        "queue",
        SERVER_SECTION,
        "queue:queue",
        "Share the cluster: declare queues, see what each uses, borrows and lends.",
    ),
    CommandEntry(
        "reserve",
        SERVER_SECTION,
        "reserve:reserve",
        "Hold nodes or resources for users or a queue and a time.",
    ),
    CommandEntry("node", SERVER_SECTION, "node:node", "List machines; take them out of service and back."),
    CommandEntry("pool", SERVER_SECTION, "pool:pool", "List pools of machines and what is in use of them."),
    CommandEntry(
        "usage",
        SERVER_SECTION,
        "usage:usage",
        "Sum what runs held of the machines, by user, queue or project.",
    ),
    CommandEntry("audit", SERVER_SECTION, "audit:audit", "List changes: by which user, when and from where."),
    CommandEntry(
        "user",
        SERVER_SECTION,
        "user:user",
        "Let others use this server: give them tokens, and take them back.",
    ),
    CommandEntry("up", SERVER_SECTION, "server:up", "Start the server of this machine."),
    CommandEntry("down", SERVER_SECTION, "server:down", "End the server of this machine."),
    CommandEntry("status", SERVER_SECTION, "server:status", "Tell what the server holds and does."),
    CommandEntry("token", SERVER_SECTION, "token:token", "Show how programs reach the API; manage tokens."),
    CommandEntry(
        "service", SERVER_SECTION, "service:service", "Let systemd start the server of this machine at boot."
    ),
    CommandEntry(
        "backup", SERVER_SECTION, "backup:backup", "Copy the home of this machine while its server runs."
    ),
    CommandEntry("restore", SERVER_SECTION, "backup:restore", "Make the home of this machine of a backup."),
    CommandEntry(
        "secret", SERVER_SECTION, "secret:secret", "Keep secrets by name, for runs that ask for them."
    ),
    CommandEntry("doctor", SERVER_SECTION, "doctor:doctor", "Check this machine and say what to mend."),
    CommandEntry("help", SERVER_SECTION, "main:help_command", "Show the help of a command."),
)
