"""`hop completion`: tab completion for bash, zsh and fish."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hopyard.cli.terminal import console
from hopyard.errors import SpecError

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_HOP_COMPLETE"
_MARK = "# tab completion of hop"


@click.group("completion", no_args_is_help=True)
def completion() -> None:
    """Complete commands, options, runs, labels, studies, datasets and queues with the Tab key."""


@completion.command("install")
@click.argument("shell", required=False, type=click.Choice(SHELLS))
def install(shell: str | None) -> None:
    """Install tab completion for SHELL, by default the login shell. It works in new shells.

    For bash and zsh, the file that the shell reads at its start gets one marked line. A repeated call
    changes nothing.
    """
    chosen = shell or _login_shell()
    script = _script_file(chosen)
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_source(chosen))
    console.print_line(str(script))
    startup = _startup_file(chosen)
    if startup is not None and _add_line(startup, _startup_line(chosen, script)):
        console.print_line(f"{startup}  one line added")
    console.print_message(f"open a new {chosen}, then press Tab after `hop `")


@completion.command("uninstall")
@click.argument("shell", required=False, type=click.Choice(SHELLS))
def uninstall(shell: str | None) -> None:
    """Remove what `hop completion install` wrote."""
    chosen = shell or _login_shell()
    script, startup = _script_file(chosen), _startup_file(chosen)
    removed = script.exists()
    script.unlink(missing_ok=True)
    if startup is not None and startup.exists():
        lines = startup.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _MARK.encode() not in line]
        if kept != lines:
            _replace(startup, kept)
            removed = True
    console.print_message(f"completion for {chosen} {'is removed' if removed else 'was not installed'}")


@completion.command("show")
@click.argument("shell", type=click.Choice(SHELLS))
def show(shell: str) -> None:
    """Print the completion script of SHELL, for `eval "$(hop completion show bash)"`."""
    click.echo(_source(shell), nl=False)


def _login_shell() -> str:
    """Raises SpecError for a shell without completion."""
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        given = f"the login shell `{name}` has no completion" if name else "SHELL is not set"
        raise SpecError(given, hints=(f"name the shell: `hop completion install {SHELLS[0]}`",))
    return name


def _source(shell: str) -> str:
    """Returns the script. It calls `hop` for the words, so a new version of `hop` needs no new script."""
    from click.shell_completion import get_completion_class

    from hopyard.cli.main import hop

    kind = get_completion_class(shell)
    assert kind is not None, shell
    completer = kind(hop, {}, "hop", _VARIABLE)
    script = completer.source_template % completer.source_vars()  # `source()` would start a bash
    # click's script for fish would end a description at its first comma
    return script.replace('string split "," ', 'string split -m 1 "," ')


def _script_file(shell: str) -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    if shell == "fish":  # fish reads the folder at its start
        return config / "fish" / "completions" / "hop.fish"
    return config / "hopyard" / f"completion.{shell}"


def _startup_file(shell: str) -> Path | None:
    """Returns the file that gets a line, None where the shell finds the script by itself."""
    if shell == "bash":
        return Path.home() / ".bashrc"
    return Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc" if shell == "zsh" else None


def _startup_line(shell: str, script: Path) -> str:
    import shlex

    quoted = shlex.quote(str(script))
    prepare = (
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }; " if shell == "zsh" else ""
    )
    return f"[ -f {quoted} ] && {{ {prepare}. {quoted}; }}  {_MARK}"


def _add_line(file: Path, line: str) -> bool:
    """Adds the line, unless an earlier call added it. Returns whether the file changed."""
    before = file.read_bytes() if file.exists() else b""
    if line.encode() in before:
        return False
    if _MARK.encode() in before:  # another place of the script
        _replace(file, [old for old in before.splitlines(keepends=True) if _MARK.encode() not in old])
    gap = b"" if before.endswith(b"\n") or not before else b"\n"
    with file.open("ab") as stream:
        stream.write(gap + line.encode() + b"\n")
    return True


def _replace(file: Path, lines: list[bytes]) -> None:
    """Replaces the content in one step: a full disk leaves the old file. A link keeps leading to its file."""
    target = file.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_bytes(b"".join(lines))
    temporary.chmod(target.stat().st_mode & 0o7777)
    temporary.replace(target)
