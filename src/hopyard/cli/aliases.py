"""Words that people bring from other programs, and what is meant by them here."""

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
        "set",
        "move",
        "rename",
        "scontrol",
        "qalter",
        "qhold",
        "qrls",
    ): "`hop update RUN` changes a run that waits: --hold keeps it from starting, --release lets it start",
    (
        "pause",
        "suspend",
    ): (
        "runs are not paused: `hop stop RUN` ends one, giving it time to save, and `hop fork RUN "
        "--checkpoint newest` goes on from what it saved"
    ),
    (
        "resume",
        "continue",
        "unpause",
    ): (
        "`hop fork RUN --checkpoint newest` goes on from what a run saved; `hop search resume STUDY` "
        "goes on with a study"
    ),
    (
        "kill",
        "cancel",
        "abort",
        "terminate",
        "end",
        "scancel",
        "qdel",
    ): "`hop stop RUN` ends a run, giving it time to save",
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
    ): "`hop ps` lists runs, with --watch every second anew",
    (
        "submit",
        "start",
        "launch",
        "exec",
        "train",
        "sbatch",
        "srun",
        "qsub",
    ): "`hop run train.py` runs a script, with --detach without following it",
    ("restart", "retry", "rerun", "repeat", "clone"): "`hop fork RUN` runs again what RUN ran",
    ("show", "describe", "inspect", "get"): "`hop info RUN` tells everything about a run",
    (
        "log",
        "tail",
        "attach",
        "follow",
        "wait",
    ): "`hop logs RUN` prints what a run wrote; -f follows it until it ends",
    ("explain", "eta", "pending"): "`hop why RUN` tells why a run waits, and when it starts",
    ("compare",): "`hop diff RUN RUN` compares two runs",
    ("metrics", "graph", "chart"): "`hop plot RUN` draws metrics",
    ("sweep", "tune", "study", "studies", "trials"): "`hop search` starts studies and shows them",
    ("download", "fetch"): "`hop pull RUN` fetches what a run left",
    ("upload", "push", "data"): "`hop dataset push` keeps a dataset",
    ("quota", "quotas", "share"): "`hop queue ls` tells what each queue may use and uses",
    ("sinfo", "hosts", "machines", "cluster"): "`hop node ls` lists machines",
    ("cordon",): "`hop node cordon NODE` lets nothing new start there",
    ("uncordon",): "`hop node uncordon NODE` lets runs start there again",
    ("drain",): "`hop node drain NODE` asks its runs to leave",
    ("serve", "server", "daemon"): "`hop up` starts the server, and so does any command that needs it",
}
_OPTION_ALIASES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("--label", "--labels", "--selector", "--constraint"),
        "--where",
        "--where LABEL=VALUE asks for nodes with a label",
    ),
    (("--label", "--title", "--job-name"), "--name", "--name LABEL is what a run is called"),
    (("--partition", "--nodepool"), "--pool", "--pool NAME asks for nodes of a pool"),
    (("--account",), "--queue", "--queue QUEUE says whose share it uses"),
    (
        ("--nodes", "--workers", "--ntasks", "--nproc", "--processes", "--world-size"),
        "--replicas",
        "--replicas N starts so many together",
    ),
    (("--elastic",), "--replicas", "--replicas MIN-MAX is elastic: as many as fit"),
    (("--gres", "--gpu-type", "--gpu-model"), "--gpus", "--gpus MODEL:N asks for GPUs of a model"),
    (("--mem", "--ram"), "--memory", "--memory 8G is the memory of each replica"),
    (
        ("--timeout", "--time-limit", "--walltime", "--max-time"),
        "--time",
        "--time 2h ends the run after so long",
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
    "stopping": ("ending", "preempting"),
    "succeeded": ("done", "completed", "complete", "finished", "success"),
    "failed": ("error", "crashed", "broken", "lost"),
    "cancelled": ("stopped", "killed", "aborted"),
}


def command_hint(word: str) -> str | None:
    """What to type in place of a command that is none, None where that is not known."""
    return next((hint for words, hint in _COMMAND_ALIASES.items() if word.lower() in words), None)


def option_hint(option: str, known: Collection[str]) -> str | None:
    """What to give a command that has the options `known` in place of one that it has not: what is meant by
    it elsewhere, else the closest. None where nothing is near."""
    from hopyard.config.suggest import closest_name

    meant = [hint for words, option_here, hint in _OPTION_ALIASES if option in words and option_here in known]
    if meant:
        return "; ".join(meant)
    # all are alike in their dashes
    near = closest_name(option.lstrip("-"), [name[2:] for name in known if name.startswith("--")])
    return f"did you mean --{near}?" if near else None


def resolve_phase(word: str) -> str:
    """The phase that is meant by a word, which is given back where none is known."""
    return next((name for name, words in _PHASE_ALIASES.items() if word.lower() in words), word)
