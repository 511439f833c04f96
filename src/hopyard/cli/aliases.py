"""Aliases: commands, options and phases of other programs, and their equivalents in Hopyard."""

from __future__ import annotations

from collections.abc import Collection

_COMMAND_ALIASES: dict[tuple[str, ...], str] = {
    (
        "hold",
        "release",
        "unhold",
        "alter",
        "edit",
        "modify",
        "move",
        "rename",
        "scontrol",
        "qalter",
        "qhold",
        "qrls",
    ): "`hop update RUN` changes a run that waits: --hold keeps it from starting, --release lets it start",
    ("suspend",): "`hop pause RUN` makes a run wait at its next safe point; `hop resume RUN` continues it",
    (
        "continue",
        "unpause",
    ): "`hop resume RUN` continues a run from what it saved; `hop search resume STUDY` continues a study",
    (
        "kill",
        "cancel",
        "abort",
        "terminate",
        "end",
        "scancel",
        "qdel",
    ): "`hop stop RUN` ends a run and gives it time to save",
    (
        "delete",
        "remove",
        "del",
        "prune",
        "clean",
    ): "`hop rm RUN` deletes a run that has ended; `hop stop RUN` ends one",
    (
        "list",
        "ls",
        "runs",
        "jobs",
        "top",
        "watch",
        "squeue",
        "qstat",
    ): "`hop ps` lists runs; with --watch it redraws the list every second",
    (
        "submit",
        "start",
        "launch",
        "train",
        "sbatch",
        "srun",
        "qsub",
    ): "`hop run train.py` runs a script; with --detach it returns at once",
    ("restart", "retry", "rerun", "repeat", "clone"): (
        "`hop fork RUN` runs the same code, data and environment again"
    ),
    ("show", "describe", "inspect", "get"): "`hop info RUN` shows all details of a run",
    (
        "log",
        "tail",
        "attach",
        "follow",
        "wait",
    ): "`hop logs RUN` prints the output of a run; -f follows it until the run ends",
    ("explain", "eta", "pending"): "`hop why RUN` explains why a run waits, and when it starts",
    ("compare",): "`hop diff RUN RUN` compares two runs",
    ("metrics", "graph", "chart"): "`hop plot RUN` draws metrics",
    ("sweep", "tune", "study", "studies", "trials"): "`hop search` starts and shows studies",
    ("download", "fetch"): "`hop pull RUN` downloads the results of a run",
    ("upload", "push", "data"): "`hop dataset push` stores a dataset",
    ("quota", "quotas", "share"): "`hop queue ls` shows the limits and the usage of each queue",
    ("sinfo", "hosts", "machines", "cluster"): "`hop node ls` lists machines",
    ("cordon",): "`hop node cordon NODE` stops new runs from starting on a node",
    ("uncordon",): "`hop node uncordon NODE` allows runs to start on a node again",
    ("drain",): "`hop node drain NODE` requests its runs to save and move to other nodes",
    ("serve", "server", "daemon"): "`hop up` starts the server, and so does any command that needs it",
}
_OPTION_ALIASES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("--label", "--labels", "--selector", "--constraint"),
        "--pool",  # commands with it request nodes; --where of others is a query
        "--pool NAME or --where LABEL=VALUE requests nodes",
    ),
    (("--label", "--title", "--job-name"), "--name", "--name LABEL is the name of a run"),
    (("--partition", "--nodepool"), "--pool", "--pool NAME requests nodes of a pool"),
    (("--account",), "--queue", "--queue QUEUE selects the queue of a run"),
    (
        ("--nodes", "--workers", "--ntasks", "--nproc", "--processes", "--world-size"),
        "--replicas",
        "--replicas N starts N replicas together",
    ),
    (("--elastic",), "--replicas", "--replicas MIN-MAX is elastic: as many replicas as fit"),
    (("--gres", "--gpu-type", "--gpu-model"), "--gpus", "--gpus MODEL:N requests GPUs of a model"),
    (("--mem", "--ram"), "--memory", "--memory 8G is the memory limit per replica"),
    (
        ("--timeout", "--time-limit", "--walltime", "--max-time"),
        "--time",
        "--time 2h is the time limit of each attempt",
    ),
    (
        ("--background", "--no-wait", "--async", "--no-follow"),
        "--detach",
        "--detach submits and returns at once",
    ),
    (("--state", "--status"), "--phase", "--phase PHASE lists only runs in this phase"),
)
_PHASE_ALIASES = {
    "queued": ("waiting", "pending", "held"),
    "starting": ("preparing", "launching"),
    "running": ("active", "training"),
    "paused": ("suspended",),
    "stopping": ("ending", "preempting"),
    "succeeded": ("done", "completed", "complete", "finished", "success"),
    "failed": ("error", "crashed", "broken", "lost"),
    "cancelled": ("stopped", "killed", "aborted"),
}


def command_hint(word: str) -> str | None:
    """Returns the hint for a command name of another program; None for an unknown word."""
    return next((hint for words, hint in _COMMAND_ALIASES.items() if word.lower() in words), None)


def option_hint(option: str, known: Collection[str]) -> str | None:
    """Returns the hint for an unknown option: the option of the same meaning, else the closest name.
    `known` are the options of the command. None where no name is close.
    """
    from hopyard.config.suggest import closest_name

    meant = [hint for words, option_here, hint in _OPTION_ALIASES if option in words and option_here in known]
    if meant:
        return "; ".join(meant)
    # all are alike in their dashes
    near = closest_name(option.lstrip("-"), [name[2:] for name in known if name.startswith("--")])
    return f"did you mean --{near}?" if near else None


def resolve_phase(word: str) -> str:
    """Returns the phase that `word` is an alias of, else `word` itself."""
    return next((name for name, words in _PHASE_ALIASES.items() if word.lower() in words), word)
