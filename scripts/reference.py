"""Write what is generated from the program (`make reference`): docs/cli.md, docs/openapi.json,
docs/reference/hop.schema.json, and from the OpenAPI description the typed client, `types.py` and
`client.py` of `hopyard.api_client`.

python scripts/reference.py [--check]

--check changes nothing, and fails if a file is not up to date.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from client_code import client_module, types_module

ROOT = Path(__file__).parents[1]
HEAD = """# Command reference

`make reference` writes this page from the commands' own help, which `hop COMMAND --help` prints.
Every listing takes `--json`. Data goes to stdout, everything else to stderr. The exit code of a
followed run is the exit code of its script. A wrong command line or value exits with 2, any other
failure with 1.
"""


def commands(at: click.Context) -> Iterator[click.Context]:
    """Every command below `at`, groups before what is in them."""
    if isinstance(at.command, click.Group):
        for name in at.command.list_commands(at):
            found = at.command.get_command(at, name)
            if found is not None and not found.hidden:
                below = type(at)(found, info_name=name, parent=at, terminal_width=100)
                yield below
                yield from commands(below)


def cli_reference() -> str:
    from hopyard.cli.main import hop

    top = click.Context(
        hop, info_name="hop", terminal_width=100, help_option_names=hop.context_settings["help_option_names"]
    )
    parts = [HEAD, "```text\n" + top.get_help() + "\n```\n"]
    for context in commands(top):
        level = "##" if context.parent is top else "###"
        parts.append(f"{level} {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(parts)


def openapi() -> str:
    """Returns the description that a server sends; the server is started for this, in a home of its own."""
    from hopyard.api_client.http_client import HttpClient
    from hopyard.api_client.local_server import start_server, stop_server
    from hopyard.config.home import Home

    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        try:
            described = HttpClient(start_server(home).url, token="").get("/openapi.json")
        finally:
            stop_server(home, runs="stop")
    return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def run_file_schema_text() -> str:
    from hopyard.config.run_file_schema import run_file_schema

    return json.dumps(run_file_schema(), indent=2, ensure_ascii=False) + "\n"


def main(check: bool) -> int:
    # no default in a help text may come from this machine's home
    os.environ.setdefault("HOPYARD_HOME", os.devnull)
    description = openapi()
    texts = {
        "docs/cli.md": cli_reference(),
        "docs/openapi.json": description,
        "docs/reference/hop.schema.json": run_file_schema_text(),
        "src/hopyard/api_client/types.py": types_module(json.loads(description)),
        "src/hopyard/api_client/client.py": client_module(json.loads(description)),
    }
    stale = []
    for name, text in texts.items():
        file = ROOT / name
        if not file.exists() or file.read_text() != text:
            stale.append(name)
            if not check:
                file.write_text(text)
    if stale and check:
        print(f"error: {', '.join(stale)}: not up to date\nhint: run `make reference`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
