"""A command that takes a script, or a module, and the arguments of both: `hop run`, `hop search run`."""

from __future__ import annotations

import re

import click

from hopyard.cli.errors import unknown_option_hint
from hopyard.errors import UsageError

_MODULE_OPTION = re.compile(r"-m[\w.]*|--module(?:=.*)?")

module_option = click.option(
    "-m", "--module", metavar="MODULE", help="A module in place of a script, as `python -m` runs it."
)


def with_module(
    module: str | None, what: str | None, arguments: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """Returns the command and the arguments. All words beside a module are its arguments."""
    if module is None:
        return what, arguments
    return "python", ("-u", "-m", module, *([] if what is None else [what]), *arguments)


class ScriptCommand(click.Command):
    """Adds a hint to the error for an unknown option that may belong to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        if not ctx.resilient_parsing:
            self._check_module(ctx, words[: words.index("--")] if "--" in words else words)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            at = next((i for i, word in enumerate(words) if word.startswith(unknown.option_name)), len(words))
            if "--" in words:
                raise
            hints = [meant] if (meant := unknown_option_hint(unknown.option_name, self)) else []
            if self._has_target(words[:at]):
                hints.append(_dashed_option_hint(ctx, words, at))
            elif not meant:
                target = f"{ctx.command_path} SCRIPT -- {unknown.option_name}"
                hints.append(f"put options of the script after `--`: {target}")
            raise UsageError(
                f"no option {unknown.option_name}",
                hints=(*hints, f"`{ctx.command_path} --help` lists the options"),
            ) from unknown

    def _check_module(self, ctx: click.Context, words: list[str]) -> None:
        """Raises UsageError for a module behind a command, which has its own option of this name."""
        options = (i for i, word in enumerate(words) if _MODULE_OPTION.fullmatch(word))
        at = next(options, len(words))
        if at < len(words) and self._has_target(words[:at]):
            raise UsageError(
                f"{words[at]} after a script or command is no option of `{ctx.command_path}`",
                hints=(_dashed_option_hint(ctx, words, at),),
            )

    def _has_target(self, words: list[str]) -> bool:
        """Whether the words contain a script or command: options after it may belong to it."""
        given = self.make_context(self.name, words, resilient_parsing=True).params
        return bool(given.get("what") or given.get("module"))


def _dashed_option_hint(ctx: click.Context, arguments: list[str], index: int) -> str:
    """Returns the hint with the corrected command line: options of the script or command go after `--`."""
    import shlex

    return (
        f"put options of the script after `--`: {ctx.command_path} "
        f"{shlex.join([*arguments[:index], '--', *arguments[index:]])}"
    )
