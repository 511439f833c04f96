"""`hop run`: submits a run and follows it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.errors import unknown_option_hint
from hopyard.cli.options import (
    REQUIREMENTS_PATH,
    checkpoints_option,
    complete_dataset,
    detach_option,
    env_option,
    extras_option,
    gpu_memory_option,
    json_option,
    max_metrics_option,
    max_output_option,
    metric_line_option,
    name_option,
    outputs_option,
    params_as_option,
    pool_option,
    ports_option,
    preempt_option,
    priority_option,
    private_folders_option,
    queue_option,
    secret_option,
    topology_option,
    where_option,
)
from hopyard.cli.terminal.console import print_json, print_message
from hopyard.client.build_run import build_request, check_code_folder, find_interpreter, target_folder
from hopyard.errors import UsageError

if TYPE_CHECKING:
    from hopyard.config.run_request import RunRequest

_MODULE_OPTION = re.compile(r"-m[\w.]*|--module(?:=.*)?")


class RunCommand(click.Command):
    """Adds a hint to the error for an unknown option that may belong to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        if not ctx.resilient_parsing:
            self._check_module(words[: words.index("--")] if "--" in words else words)
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
                hints.append(f"put options of the script after `--`: hop run SCRIPT -- {unknown.option_name}")
            raise UsageError(
                f"no option {unknown.option_name}", hints=(*hints, "`hop run --help` lists the options")
            ) from unknown

    def _check_module(self, words: list[str]) -> None:
        """Raises UsageError for a module behind a command, which has its own option of this name."""
        options = (i for i, word in enumerate(words) if _MODULE_OPTION.fullmatch(word))
        at = next(options, len(words))
        if at < len(words) and self._has_target(words[:at]):
            raise UsageError(
                f"{words[at]} after a script or command is no option of `hop run`",
                hints=(_dashed_option_hint(words, at),),
            )

    def _has_target(self, words: list[str]) -> bool:
        """Whether the words contain a script or command: options after it may belong to it."""
        given = self.make_context("run", words, resilient_parsing=True).params
        return bool(given.get("what") or given.get("module"))


def _dashed_option_hint(arguments: list[str], index: int) -> str:
    """Returns the hint with the corrected command line: options of the script or command go after `--`."""
    import shlex

    return (
        "put options of the script after `--`: hop run "
        f"{shlex.join([*arguments[:index], '--', *arguments[index:]])}"
    )


@click.command("run", cls=RunCommand)
@click.argument(
    "what",
    required=False,
    metavar="SCRIPT|COMMAND|FILE.yaml",
    shell_complete=lambda _c, _p, _i: [click.shell_completion.CompletionItem("", type="file")],
)
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]", type=click.UNPROCESSED)
@click.option(
    "-m", "--module", metavar="MODULE", help="A module in place of a script, as `python -m` runs it."
)
@click.option(
    "-d",
    "--dataset",
    "datasets",
    multiple=True,
    metavar="NAME[:VERSION][=PATH]",
    shell_complete=complete_dataset,
    help=(
        "A dataset that the script reads (repeatable). Where the script looks for it: mnist=../data, "
        "relative to the working folder, or mnist:/data/mnist. {dataset:mnist} in arguments is its folder."
    ),
)
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="K=V",
    help="A parameter, given as the script takes it (repeatable).",
)
@params_as_option
@env_option
@secret_option
@name_option
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A tag to find it by (repeatable).")
@click.option(
    "--cpus",
    metavar="N",
    help=("CPUs per replica, also fractions; a limit if given.  [default: 1, and idle CPUs]"),
)
@click.option(
    "--memory",
    metavar="8G",
    help=("Memory limit per replica. A run that exceeds it is killed (out of memory)."),
)
@click.option(
    "--gpus",
    metavar="N|MODEL:N",
    help="GPUs per replica: 2, a share of one 0.5, of a model A100:8, of one of two A100|H100:2.",
)
@gpu_memory_option
@extras_option
@click.option(
    "--time",
    metavar="2h",
    help="Time limit of each attempt: 2h, 90m, 3600. A lost or preempted run gets the full limit again.",
)
@max_output_option
@max_metrics_option
@metric_line_option
@outputs_option
@ports_option
@click.option(
    "--replicas",
    metavar="N|MIN-MAX",
    help="Number of replicas, which start together; elastic 2-8: as many as fit.",
)
@click.option(
    "--nodes",
    type=int,
    metavar="N",
    help="Spread the replicas over N nodes, equally many on each.  [default: one replica per node]",
)
@private_folders_option
@checkpoints_option
@topology_option
@pool_option
@where_option
@click.option(
    "--requirements",
    type=REQUIREMENTS_PATH,
    metavar="FILE",
    help="Build the environment from this file, once (`pyproject.toml[EXTRA]:GROUP`).",
)
@click.option(
    "--python", metavar="VERSION|PATH", help="Python version for --requirements, or an interpreter to use."
)
@queue_option
@priority_option
@preempt_option
@click.option(
    "--from",
    "start_from",
    metavar="RUN[@STEP]",
    help="Start from a checkpoint of RUN with the code of this folder; the newest without a step.",
)
@click.option("--project", help="The project it belongs to.  [default: the folder's name]")
@click.option(
    "--print-spec",
    is_flag=True,
    help="Print the hop.yaml of this command line, and submit nothing; with --json as JSON.",
)
@click.option("--print-schema", is_flag=True, help="Print the JSON Schema of hop.yaml, for editors.")
@detach_option
@json_option
def run(
    what: str | None,
    arguments: tuple[str, ...],
    module: str | None,
    start_from: str | None,
    print_spec: bool,
    print_schema: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a Python script, a command, or the gang of a hop.yaml; follow it until it ends.

    The current folder is packed and travels with the run, without the files in .gitignore and .hopignore.
    Ctrl-C stops following; the run continues. The exit code is the script's.
    """
    from hopyard.cli.attach import attach_to_run
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.client.param_forms import with_param_format
    from hopyard.client.submit import submit_run

    if print_schema:
        from hopyard.config.run_file_schema import run_file_schema

        print_json(run_file_schema())
        return 0
    if module is not None:  # all other words are its arguments
        what, arguments = "python", ("-u", "-m", module, *([] if what is None else [what]), *arguments)
    if what is None:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    folder = Path.cwd()
    request = build_request(what, arguments, folder, options, notify=print_message)
    code_folder = target_folder(what, folder)
    if code_folder != folder:
        print_message(f"note: {what} runs in its own folder, {code_folder}, not in the current one")
    check_code_folder(code_folder)
    request = with_param_format(request, code_folder, notify=print_message)
    interpreter = find_interpreter(options.get("python"))
    if print_spec:
        _print_spec(request if interpreter is None else replace(request, interpreter=interpreter), as_json)
        if start_from is not None:
            print_message(f"note: the file has no key for `--from {start_from}`: give the option again")
        return 0
    client, submitted = submit_run(
        request,
        code_folder,
        interpreter=interpreter,
        start_from=start_from,
        notify=print_message,
        on_progress=TransferBar,
    )
    return attach_to_run(client, submitted, detach=detach, as_json=as_json, folder=code_folder)


def _print_spec(request: RunRequest, as_json: bool) -> None:
    from hopyard.config.run_file_text import format_run_file, run_file_values

    if as_json:
        print_json(run_file_values(request))
    else:
        click.echo(format_run_file(request), nl=False)
