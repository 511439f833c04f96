"""`hop secret …`: secret values for runs, by name; no command shows them again."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.config.key_values import parse_secrets
from hopyard.errors import SpecError

_MAX_BYTES = 64 * 1024  # as the server takes it


@click.group("secret", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def secret(ctx: click.Context) -> None:
    """Store secrets by name for your runs: `hop run --secret NAME` passes one to a run as the variable NAME.

    A value can be set and removed, but no command, API answer or run spec shows it again.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@secret.command("set")
@click.argument("name", metavar="NAME")
@click.option(
    "--from-file", "file", type=click.Path(path_type=Path), help="Read the value from a file, in full."
)
@json_option
def set_secret(name: str, file: Path | None, as_json: bool) -> None:
    """Keep the value of NAME, read from the terminal without echo, from standard input, or from a file.

    \b
    hop secret set HF_TOKEN                     prompts for the value
    pass show hf | hop secret set HF_TOKEN      one line feed at the end is left out
    """
    from hopyard.api_client.local_server import connect

    (name,) = parse_secrets([name], what="NAME")
    value = _read_value(name, file)
    stored = connect().put_secret(name, {"value": value})
    if as_json:
        console.print_json(stored)
    else:
        console.print_message(f"secret {name} is stored; `hop run --secret {name}` passes it to a run")


@secret.command("ls")
@json_option
def list_secrets(as_json: bool) -> None:
    """List the names of your secrets and the times of their last change."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import format_clock

    secrets = connect().get_secrets()["secrets"]
    if as_json:
        console.print_json(secrets)
    elif not secrets:
        console.print_message("you have no secrets; `hop secret set NAME` stores one")
    else:
        console.print_lines(
            console.format_table(
                ["NAME", "SET"], [[entry["name"], format_clock(entry["set_at"])] for entry in secrets]
            )
        )


@secret.command("rm")
@click.argument("name", metavar="NAME")
@json_option
def remove_secret(name: str, as_json: bool) -> None:
    """Remove a secret. Started runs keep its value."""
    from hopyard.api_client.local_server import connect

    (name,) = parse_secrets([name], what="NAME")
    connect().delete_secret(name)
    if as_json:
        console.print_json({"name": name})
    else:
        console.print_message(f"secret {name} is removed")


def _read_value(name: str, file: Path | None) -> str:
    """Raises SpecError."""
    if file is None and sys.stdin.isatty():
        value: str = click.prompt(f"value of {name}", hide_input=True, err=True)
    else:
        try:
            data = sys.stdin.buffer.read() if file is None else file.read_bytes()
            value = data.decode()
        except OSError as error:
            raise SpecError(
                f"--from-file: {file} cannot be read: {error.strerror}",
                hints=("give a file that exists and that you can read",),
            ) from error
        except UnicodeDecodeError as error:
            raise SpecError(
                f"the value of {name} is not UTF-8 text",
                hints=("encode it, for example with base64: a variable holds text",),
            ) from error
        if file is None:
            value = value.removesuffix("\n")
    if len(value) > _MAX_BYTES:
        raise SpecError(
            f"the value of {name} has {len(value):,} characters; at most {_MAX_BYTES:,} are allowed",
            hints=("push larger data as a dataset: `hop dataset push`; a key to it can be the secret",),
        )
    if not value or "\0" in value:
        raise SpecError(
            f"the value of {name} is empty" if not value else f"the value of {name} contains a zero byte",
            hints=("remove the zero byte: a variable holds text",),
        )
    return value
