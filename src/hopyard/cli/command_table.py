"""The table of all commands: name, section, module and one-line summary.

`hop --help` and shell completion read this table, so they import no command.
"""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """`target` is module:attribute below `hopyard.cli`."""

    name: str
    section: str
    target: str
    summary: str


RUN_SECTION, INSPECT_SECTION, DATA_SECTION, SERVER_SECTION = "Run", "Inspect", "Data and results", "Server"

COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry(
        "run", RUN_SECTION, "run:run", "Run a script, a command or a hop.yaml; follow it until it ends."
    ),
    CommandEntry("shell", RUN_SECTION, "shell:shell", "Work in a shell on a node, as a run."),
    CommandEntry("notebook", RUN_SECTION, "notebook:notebook", "Run JupyterLab, and open it in a browser."),
    CommandEntry(
        "tensorboard", RUN_SECTION, "tensorboard:tensorboard", "Show runs in TensorBoard, in a browser."
    ),
    CommandEntry("visdom", RUN_SECTION, "visdom:visdom", "Run your Visdom server, and open it in a browser."),
    CommandEntry(
        "search",
        RUN_SECTION,
        "studies.command:search",
        "Tune hyperparameters: start, show, draw, resume and replay studies.",
    ),
    CommandEntry(
        "fork", RUN_SECTION, "fork:fork", "Run again with changes: same code, data and environment."
    ),
    CommandEntry(
        "evaluate",
        RUN_SECTION,
        "evaluate:evaluate",
        "Evaluate the checkpoints of a run, also while it trains.",
    ),
    CommandEntry(
        "resume", RUN_SECTION, "resume:resume", "Continue a paused run, or an ended run from what it saved."
    ),
    CommandEntry("pause", RUN_SECTION, "pause:pause", "Make a run wait at its next safe point."),
    CommandEntry("set", RUN_SECTION, "set:set_params", "Change parameters of a running script."),
    CommandEntry("alert", RUN_SECTION, "alert:alert", "Notify the targets of a run."),
    CommandEntry(
        "update",
        RUN_SECTION,
        "update:update",
        "Change or hold waiting runs; name, tag and annotate any run.",
    ),
    CommandEntry("stop", RUN_SECTION, "stop:stop", "End runs and give them time to save."),
    CommandEntry("rm", RUN_SECTION, "rm:rm", "Delete ended runs with their logs, metrics and checkpoints."),
    CommandEntry("ps", INSPECT_SECTION, "ps:ps", "List live runs, or all runs with -a."),
    CommandEntry("logs", INSPECT_SECTION, "logs:logs", "Print the output of a run; -f follows it."),
    CommandEntry("plot", INSPECT_SECTION, "plot:plot", "Draw metrics in the terminal or as a PNG."),
    CommandEntry(
        "media",
        INSPECT_SECTION,
        "media:media",
        "List, show and fetch the images, tables and other media of a run.",
    ),
    CommandEntry(
        "port", INSPECT_SECTION, "port:port", "Reach a port at which a run serves, here or in a browser."
    ),
    CommandEntry(
        "exec", INSPECT_SECTION, "exec:exec_command", "Run a command beside a live run, in its environment."
    ),
    CommandEntry("repl", INSPECT_SECTION, "repl:repl", "Evaluate Python in the process of a live run."),
    CommandEntry("events", INSPECT_SECTION, "events:events", "Print what changes: runs, nodes, queues."),
    CommandEntry("inbox", INSPECT_SECTION, "inbox:inbox", "List alerts and ends of your runs."),
    CommandEntry("info", INSPECT_SECTION, "info:info", "Show all details of a run."),
    CommandEntry(
        "why",
        INSPECT_SECTION,
        "why:why",
        "Explain why a run waits, when it starts, and how it could start sooner.",
    ),
    CommandEntry(
        "diff",
        INSPECT_SECTION,
        "diff:diff",
        "Compare two runs: code, parameters, environment, data, results.",
    ),
    CommandEntry(
        "lineage", INSPECT_SECTION, "lineage:lineage", "Show the tree of forks and trials of a run."
    ),
    CommandEntry(
        "simulate",
        INSPECT_SECTION,
        "simulation.command:simulate",
        "Simulate a workload on a cluster: waits, usage, fairness, effect of more nodes.",
    ),
    CommandEntry(
        "dataset",
        DATA_SECTION,
        "dataset:dataset",
        "Push, list, pull and remove datasets; their leaderboards.",
    ),
    CommandEntry("board", DATA_SECTION, "leaderboard:board", "Show the leaderboard of a dataset."),
    CommandEntry(
        "files", DATA_SECTION, "files:files", "List and fetch the files that a run wrote, also of a live run."
    ),
    CommandEntry(
        "pull",
        DATA_SECTION,
        "pull:pull",
        "Download code, checkpoint, files, logs, metrics and media of a run.",
    ),
    CommandEntry(
        "checkpoint",
        DATA_SECTION,
        "checkpoint:checkpoint",
        "List, keep and remove the checkpoints of a run.",
    ),
    CommandEntry(
        "report",
        DATA_SECTION,
        "report:report",
        "List, show, export and remove reports: text, curves and tables of chosen runs.",
    ),
    CommandEntry("sync", DATA_SECTION, "sync:sync", "Upload runs that were recorded without a server."),
    CommandEntry(
        "queue",
        SERVER_SECTION,
        "queue:queue",
        "Share the cluster: declare queues, show their usage, borrowing and lending.",
    ),
    CommandEntry(
        "reserve",
        SERVER_SECTION,
        "reserve:reserve",
        "Reserve nodes or resources for users or a queue, for a time.",
    ),
    CommandEntry("node", SERVER_SECTION, "node:node", "List nodes; cordon, drain and uncordon them."),
    CommandEntry("pool", SERVER_SECTION, "pool:pool", "List pools of nodes and their usage."),
    CommandEntry(
        "timeline",
        SERVER_SECTION,
        "timeline:timeline",
        "List what ran, what runs and which starts are promised.",
    ),
    CommandEntry(
        "usage",
        SERVER_SECTION,
        "usage:usage",
        "Sum the resource usage of runs by user, queue or project.",
    ),
    CommandEntry("audit", SERVER_SECTION, "audit:audit", "List changes: user, action, time and address."),
    CommandEntry(
        "user",
        SERVER_SECTION,
        "user:user",
        "Manage the users of this server and their tokens.",
    ),
    CommandEntry("up", SERVER_SECTION, "server:up", "Start the server of this machine."),
    CommandEntry("down", SERVER_SECTION, "server:down", "Stop the server of this machine."),
    CommandEntry("ui", SERVER_SECTION, "ui:ui", "Open the web UI in a browser, logged in."),
    CommandEntry(
        "status", SERVER_SECTION, "server:status", "Show the state of the server, its runs and its nodes."
    ),
    CommandEntry("token", SERVER_SECTION, "token:token", "Show the address of the API; manage tokens."),
    CommandEntry(
        "session", SERVER_SECTION, "session:session", "Show the browsers that are logged in; log them out."
    ),
    CommandEntry(
        "service", SERVER_SECTION, "service:service", "Let systemd start the server of this machine at boot."
    ),
    CommandEntry(
        "backup", SERVER_SECTION, "backup:backup", "Back up the home of this machine while its server runs."
    ),
    CommandEntry(
        "restore", SERVER_SECTION, "backup:restore", "Restore the home of this machine from a backup."
    ),
    CommandEntry("secret", SERVER_SECTION, "secret:secret", "Store secrets by name for runs."),
    CommandEntry("doctor", SERVER_SECTION, "doctor:doctor", "Check this machine and list what to repair."),
    CommandEntry(
        "examples", SERVER_SECTION, "examples:examples", "List and copy the example scripts of Hopyard."
    ),
    CommandEntry(
        "completion", SERVER_SECTION, "completion:completion", "Install tab completion for bash, zsh or fish."
    ),
    CommandEntry("help", SERVER_SECTION, "main:help_command", "Show the help of a command."),
)
