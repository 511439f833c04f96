"""Every command by name: where it lives and what it does in one line.

The listing of `hop --help` and shell completion are drawn from this table, so that no command is imported to
be named.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """`target` is module:attribute below `hopyard.cli`."""

    name: str
    section: str
    target: str
    summary: str


RUN, LOOK, DATA, SERVER = "Run", "Look", "Data and results", "Server"

COMMANDS: tuple[Entry, ...] = (
    Entry("run", RUN, "run:run", "Run a script, a command or a hop.yaml; follow it until it ends."),
    Entry(
        "search", RUN, "search:search", "Search hyperparameters: start a study, see it, draw it, replay it."
    ),
    Entry("fork", RUN, "fork:fork", "Run again with changes: same code, data and environment."),
    Entry(
        "update",
        RUN,
        "update:update",
        "Change runs that wait, hold and release them; name, tag and note any run.",
    ),
    Entry("stop", RUN, "stop:stop", "End runs, giving them time to save."),
    Entry("rm", RUN, "rm:rm", "Delete ended runs and all that only they need."),
    Entry("ps", LOOK, "ps:ps", "List runs: those alive, or all with -a."),
    Entry("logs", LOOK, "logs:logs", "Print what a run wrote; -f follows it."),
    Entry("plot", LOOK, "plot:plot", "Draw metrics in the terminal or as a PNG."),
    Entry("info", LOOK, "describe:describe", "Tell everything about one run."),
    Entry("why", LOOK, "why:why", "Tell why a run waits, when it starts, and what would be sooner."),
    Entry("diff", LOOK, "diff:diff", "Compare two runs: code, parameters, environment, data, results."),
    Entry(
        "simulate",
        LOOK,
        "simulate:simulate",
        "Play a workload on a cluster: waits, use, fairness; what more nodes would do.",
    ),
    Entry("dataset", DATA, "dataset:dataset", "Push, list, pull and remove datasets; their leaderboards."),
    Entry("board", DATA, "board:board", "Show the leaderboard of a dataset."),
    Entry("pull", DATA, "pull:pull", "Fetch code, checkpoint, files and logs of a run."),
    Entry("sync", DATA, "sync:sync", "Upload runs that were recorded without a server."),
    Entry(
        "queue",
        SERVER,
        "queue:queue",
        "Share the cluster: declare queues, see what each uses, borrows and lends.",
    ),
    Entry("reserve", SERVER, "reserve:reserve", "Hold nodes or resources for users or a queue and a time."),
    Entry("node", SERVER, "node:node", "List machines; take them out of service and back."),
    Entry("pool", SERVER, "pool:pool", "List pools of machines and what is in use of them."),
    Entry("usage", SERVER, "usage:usage", "Sum what runs held of the machines, by user, queue or project."),
    Entry("audit", SERVER, "audit:audit", "List changes: by which user, when and from where."),
    Entry("user", SERVER, "user:user", "Let others use this server: give them tokens, and take them back."),
    Entry("up", SERVER, "server:up", "Start the server of this machine."),
    Entry("down", SERVER, "server:down", "End the server of this machine."),
    Entry("status", SERVER, "server:status", "Tell what the server holds and does."),
    Entry("token", SERVER, "token:token", "Show how programs reach the API; manage tokens."),
    Entry("service", SERVER, "service:service", "Let systemd start the server of this machine at boot."),
    Entry("backup", SERVER, "backup:backup", "Copy the home of this machine while its server runs."),
    Entry("restore", SERVER, "backup:restore", "Make the home of this machine of a backup."),
    Entry("secret", SERVER, "secret:secret", "Keep secrets by name, for runs that ask for them."),
    Entry("doctor", SERVER, "doctor:doctor", "Check this machine and say what to mend."),
    Entry("help", SERVER, "main:help_command", "Show the help of a command."),
)
