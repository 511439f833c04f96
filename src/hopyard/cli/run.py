"""`hop run`: submits a run and follows it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hopyard.cli.errors import unknown_option_hint
from hopyard.cli.options import (
    complete_dataset,
    env_option,
    extras_option,
    gpu_memory_option,
    json_option,
    max_metrics_option,
    max_output_option,
    pool_option,
    preempt_option,
    priority_option,
    queue_option,
    secret_option,
    topology_option,
    where_option,
)
from hopyard.cli.terminal.console import print_message
from hopyard.config import key_values as pairs
from hopyard.config.run_request import (
    SIZE_OPTIONS,
    RoleRequest,
    RunRequest,
    default_project,
    parse_datasets,
    parse_placement,
    parse_scheduling,
    parse_sizes,
    script_command,
)
from hopyard.domain.ids import check_label, check_name
from hopyard.errors import SpecError, UsageError

_OPTION_NAMES = {"gpu_memory": "--gpu-memory", "extras": "--resource"}
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class RunCommand(click.Command):
    """Tells where a script's own options belong when one of them is met among those of `hop run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            at = next((i for i, word in enumerate(words) if word.startswith(unknown.option_name)), len(words))
            if "--" in words:
                raise
            hints = [meant] if (meant := unknown_option_hint(unknown.option_name, self)) else []
            if self._has_target(words[:at]):
                hints.append(_dashed_option_hint(words, at))
            elif not meant:
                hints.append(
                    f"options of the script go behind it, after `--`: hop run SCRIPT -- {unknown.option_name}"
                )
            raise UsageError(
                f"no option {unknown.option_name}", hints=(*hints, "`hop run --help` lists the options")
            ) from unknown

    def _has_target(self, words: list[str]) -> bool:
        """Whether a script or command is among the words: what comes behind it may be meant for it, and what
        comes before may not."""
        return bool(self.make_context("run", words, resilient_parsing=True).params.get("what"))


def _dashed_option_hint(arguments: list[str], index: int) -> str:
    """The hint that shows the command line as it was meant: options of the script or command go after
    `--`."""
    import shlex

    return (
        "options of the script go after `--`: hop run "
        f"{shlex.join([*arguments[:index], '--', *arguments[index:]])}"
    )


@click.command("run", cls=RunCommand)
@click.argument(
    "what",
    metavar="SCRIPT|COMMAND|FILE.yaml",
    shell_complete=lambda _c, _p, _i: [click.shell_completion.CompletionItem("", type="file")],
)
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]", type=click.UNPROCESSED)
@click.option(
    "-d",
    "--dataset",
    "datasets",
    multiple=True,
    metavar="NAME[:VERSION]",
    shell_complete=complete_dataset,
    help="A dataset that the script reads (repeatable).",
)
@click.option(
    "-p", "--param", "params", multiple=True, metavar="K=V", help="A parameter for `hop.params` (repeatable)."
)
@env_option
@secret_option
@click.option("-n", "--name", "label", metavar="LABEL", help="A name of your own for the run.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A tag to find it by (repeatable).")
@click.option(
    "--cpus",
    metavar="N",
    help=(
        "CPUs of each replica, also fractions; also the most it may use.  [default: 1, more while "
        "nobody else wants them]"
    ),
)
@click.option("--memory", metavar="8G", help="Memory of each replica; more is out of memory.")
@click.option(
    "--gpus",
    metavar="N|MODEL:N",
    help="GPUs of each replica: 2, a share of one 0.5, of a model A100:8, of one of two A100|H100:2.",
)
@gpu_memory_option
@extras_option
@click.option(
    "--time",
    metavar="2h",
    help="Time limit of each attempt: 2h, 90m, 3600. A run that is lost or preempted has all of it again.",
)
@max_output_option
@max_metrics_option
@click.option(
    "--replicas",
    metavar="N|MIN-MAX",
    help="So many replicas, started together or not at all; elastic 2-8: as many as fit.",
)
@topology_option
@pool_option
@where_option
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Build the environment from this file, once.",
)
@click.option(
    "--python", metavar="VERSION|PATH", help="Python version for --requirements, or an interpreter to use."
)
@queue_option
@priority_option
@preempt_option
@click.option("--project", help="The project it belongs to.  [default: the folder's name]")
@click.option("--detach", is_flag=True, help="Submit and return at once.")
@json_option
def run(what: str, arguments: tuple[str, ...], detach: bool, as_json: bool, **options: Any) -> int:
    """Run a Python script, a command, or the gang that a hop.yaml describes; follow it until it ends.

    The current folder is packed (what .gitignore and .hopignore name is left out) and travels with the run.
    Ctrl-C leaves the run alone and stops following. The exit code is the script's.
    """
    from hopyard.cli.attach import attach_to_run
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.client.submit import submit_run

    folder = Path.cwd()
    request = build_request(what, arguments, folder, options)
    code_folder = _target_path(what, folder)[0]
    if code_folder != folder:
        print_message(f"note: {what} runs in its own folder, {code_folder}, not in the current one")
    if code_folder == Path("/"):
        raise SpecError(
            "the current folder is /: the whole machine would be packed",
            hints=("cd into the folder of the code; it travels with the run",),
        )
    client, submitted = submit_run(
        request,
        code_folder,
        interpreter=_select_interpreter(options.get("python")),
        notify=print_message,
        on_progress=TransferBar,
    )
    return attach_to_run(client, submitted, detach=detach, as_json=as_json)


def build_request(
    target: str, arguments: tuple[str, ...], folder: Path, options: dict[str, Any]
) -> RunRequest:
    """The run that the command line asks for. Raises SpecError."""
    if target.endswith((".yaml", ".yml")):
        from hopyard.client.submit import warn_of_secrets
        from hopyard.config.run_file import read_run_file

        request = read_run_file(Path(target), folder=folder)
        warn_of_secrets(request, target, print_message)
        role = _single_role(request, arguments, options, target)
    else:
        command = _role_command(target, arguments, folder, base=options.get("requirements") is not None)
        request = RunRequest(roles=(), project=default_project(_target_path(target, folder)[0]))
        role = RoleRequest(command)
    if role is not None:
        request = replace(request, roles=(replace(role, **parse_sizes(options)),))
    places = parse_placement(options)
    if places:
        request = replace(request, roles=tuple(replace(each, **places) for each in request.roles))
    return _apply_options(request, options)


def _single_role(
    request: RunRequest, arguments: tuple[str, ...], options: dict[str, Any], file: str
) -> RoleRequest | None:
    """The role that options of replicas are meant for; None where there are several and no such option."""
    if len(request.roles) == 1:
        return replace(request.roles[0], command=(*request.roles[0].command, *arguments))
    given = [
        _OPTION_NAMES.get(name, f"--{name}") for name in SIZE_OPTIONS if options.get(name) not in (None, ())
    ]
    if arguments:
        given.append("arguments")
    if given:
        raise SpecError(
            f"{', '.join(given)}: {file} has {len(request.roles)} roles",
            hints=("say it in the file, role by role",),
        )
    return None


def _apply_options(base: RunRequest, options: dict[str, Any]) -> RunRequest:
    """`base` with what the command line says beside roles; it goes before what a file says."""
    changes = parse_scheduling(options)
    if options.get("label"):
        changes["label"] = check_label(check_name(options["label"], subject="--name"), subject="--name")
    if options.get("project"):
        changes["project"] = check_name(options["project"], subject="--project")
    if options.get("datasets"):
        changes["datasets"] = tuple(
            {**dict(base.datasets), **dict(parse_datasets(options["datasets"]))}.items()
        )
    if options.get("params"):
        changes["params"] = {**base.params, **pairs.parse_params(options["params"])}
    if options.get("env"):
        changes["env"] = {**base.env, **pairs.parse_env(options["env"], os.environ)}
    if options.get("secrets"):
        changes["secrets"] = tuple(dict.fromkeys([*base.secrets, *pairs.parse_secrets(options["secrets"])]))
    if options.get("tags"):
        changes["tags"] = {**base.tags, **pairs.parse_tags(options["tags"])}
    if options.get("requirements") is not None:
        changes["requirements"] = options["requirements"]
    python = options.get("python")
    if python and "/" not in python:
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,5}){0,2}", python):
            raise SpecError(
                f"--python: `{python}` is not a version",
                hints=("for example 3.12; or give the path of an interpreter",),
            )
        changes["python"] = python
    changed = replace(base, **changes) if changes else base
    if changed.python and changed.requirements is None:
        raise SpecError(
            f"--python: version {changed.python} is built together with requirements only",
            hints=("add --requirements FILE, or give the path of an interpreter",),
        )
    return changed


def _role_command(target: str, arguments: tuple[str, ...], folder: Path, *, base: bool) -> tuple[str, ...]:
    if target.endswith(".py"):
        packed, script = _target_path(target, folder)
        return script_command(script, arguments, folder=packed)
    if target in ("python", "python3"):
        return ("python", *arguments)
    # with its archive formats it takes longer to import than a script takes to be found
    from shutil import which

    found = which(target)
    if found is None and not base:
        problem = f"`{target}` is not a program that can be run"
        hints = (
            [f"a script is run by its name: hop run {target}.py"]
            if (folder / f"{target}.py").is_file()
            else []
        )
        if (folder / target).is_dir():
            problem = f"`{target}` is a folder"
        elif "/" in target and (folder / target).is_file():
            problem, hints = f"`{target}` is not executable", [f"chmod +x {target}"]
        elif (folder / target).is_file():
            hints = [f"a file of this folder is named with ./: hop run ./{target}"]
        raise SpecError(problem, hints=(*hints, "give a Python script, a command in PATH, or a hop.yaml"))
    if "/" in target or found is None or str(Path(found).parent) in _SYSTEM_PATH or base:
        return (target, *arguments)
    # A program of the caller's own environment (torchrun in a venv): the server's PATH may not have it.
    return (str(Path(found).absolute()), *arguments)


def _target_path(target: str, folder: Path) -> tuple[Path, str]:
    """The folder to pack, and the path in it of a script: the current folder, or the script's own where it is
    not below that.

    Below `/` lies everything, so there it is the script's own, too.
    """
    if not target.endswith(".py"):
        return folder, target
    here, own = folder.resolve(), (folder / target).parent.resolve()
    if own == here or (own.is_relative_to(here) and here != Path("/")):
        return folder, str(own.relative_to(here) / Path(target).name)
    return own, Path(target).name


def _select_interpreter(python: str | None) -> str | None:
    """The interpreter named by its path, None where none is. Raises SpecError."""
    if not python or "/" not in python:
        return None
    path = Path(python).expanduser().absolute()
    if not os.access(path, os.X_OK) or not path.is_file():
        raise SpecError(
            f"--python: {python} is not an interpreter",
            hints=("give the path of a python program, or a version with --requirements",),
        )
    return str(path)
