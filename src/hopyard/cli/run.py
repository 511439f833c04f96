"""`hop run`: submits a run and follows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.options import (
    checkpoints_option,
    container_option,
    datasets_option,
    detach_option,
    env_option,
    extras_option,
    gpu_memory_option,
    idle_option,
    image_option,
    json_option,
    keep_option,
    launcher_option,
    max_metrics_option,
    max_output_option,
    metric_line_option,
    name_option,
    network_option,
    no_preflight_option,
    on_end_option,
    outputs_option,
    param_option,
    params_as_option,
    pool_option,
    ports_option,
    preempt_option,
    priority_option,
    private_folders_option,
    processes_option,
    project_option,
    python_option,
    queue_option,
    requirements_option,
    resume_argument_option,
    run_cpus_option,
    run_gpus_option,
    run_memory_option,
    secret_option,
    time_option,
    topology_option,
    where_option,
)
from hopyard.cli.script_command import ScriptCommand, module_option, with_module
from hopyard.cli.start_preview import preview_lines
from hopyard.cli.terminal.console import print_json, print_lines, print_message
from hopyard.client.build_run import build_request, check_code_folder, find_interpreter, target_folder

if TYPE_CHECKING:
    from hopyard.config.run_request import RunRequest


@click.command("run", cls=ScriptCommand)
@click.argument(
    "what",
    required=False,
    metavar="SCRIPT|COMMAND|FILE.yaml",
    shell_complete=lambda _c, _p, _i: [click.shell_completion.CompletionItem("", type="file")],
)
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]", type=click.UNPROCESSED)
@module_option
@datasets_option
@param_option
@params_as_option
@env_option
@secret_option
@name_option
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A tag to find it by (repeatable).")
@run_cpus_option
@run_memory_option
@run_gpus_option
@gpu_memory_option
@extras_option
@time_option
@idle_option
@max_output_option
@max_metrics_option
@metric_line_option
@outputs_option
@ports_option
@on_end_option
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
@launcher_option
@processes_option
@private_folders_option
@checkpoints_option
@keep_option
@resume_argument_option
@topology_option
@pool_option
@where_option
@requirements_option
@image_option
@container_option
@network_option
@python_option
@queue_option
@priority_option
@preempt_option
@no_preflight_option
@click.option(
    "--from",
    "start_from",
    metavar="RUN[@STEP]",
    help="Start from a checkpoint of RUN with the code of this folder; the newest without a step.",
)
@project_option
@click.option(
    "--print-spec",
    is_flag=True,
    help="Print the hop.yaml of this command line, and submit nothing; with --json as JSON.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print when the run would start, and upload and submit nothing.",
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
    dry_run: bool,
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
    from hopyard.client.run_evaluator import submit_evaluator
    from hopyard.client.submit import preview_run, submit_run

    if print_schema:
        from hopyard.config.run_file_schema import run_file_schema

        print_json(run_file_schema())
        return 0
    what, arguments = with_module(module, what, arguments)
    if what is None:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    folder = Path.cwd()
    request = build_request(what, arguments, folder, options, notify=print_message)
    code_folder = target_folder(what, folder)
    if code_folder != folder:
        print_message(f"note: {what} runs in its own folder, {code_folder}, not in the current one")
    check_code_folder(code_folder)
    plain_request = request
    request = with_param_format(request, code_folder, notify=print_message)
    interpreter = find_interpreter(options.get("python"))
    if print_spec:
        _print_spec(request if interpreter is None else replace(request, interpreter=interpreter), as_json)
        if start_from is not None:
            print_message(f"note: the file has no key for `--from {start_from}`: give the option again")
        return 0
    if dry_run:
        preview = preview_run(
            request,
            code_folder,
            interpreter=interpreter,
            start_from=start_from,
            notify=print_message,
            on_progress=TransferBar,
        )
        if as_json:
            print_json(preview)
        else:
            print_lines(preview_lines(preview))
        return 0
    client, submitted = submit_run(
        request,
        code_folder,
        interpreter=interpreter,
        start_from=start_from,
        notify=print_message,
        on_progress=TransferBar,
    )
    submit_evaluator(plain_request, submitted, code_folder, interpreter=interpreter, notify=print_message)
    return attach_to_run(client, submitted, detach=detach, as_json=as_json, folder=code_folder)


def _print_spec(request: RunRequest, as_json: bool) -> None:
    from hopyard.config.run_file_text import format_run_file, run_file_values

    if as_json:
        print_json(run_file_values(request))
    else:
        click.echo(format_run_file(request), nl=False)
