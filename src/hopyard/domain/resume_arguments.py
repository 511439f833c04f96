"""Arguments that a script gets only when it begins with a checkpoint of its own: `--resume {checkpoint}`.

`{checkpoint}` is the path of the newest checkpoint, a file or a folder. `-p NAME=VALUE` sets a parameter, in
the form in which the script takes the others. Other words are added to the end of the command. The first
attempt of a run gets none of them, nor does an attempt without any checkpoint.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hopyard.errors import SpecError

PLACEHOLDER = "{checkpoint}"
_PARAM_WORDS = ("-p", "--param")


@dataclass(frozen=True, slots=True)
class ResumeArguments:
    """words: for the end of the command. params: values of parameters, as typed."""

    words: tuple[str, ...] = ()
    params: tuple[str, ...] = ()

    def filled(self, checkpoint: str) -> ResumeArguments:
        """Returns them with the path of a checkpoint."""
        return ResumeArguments(
            tuple(word.replace(PLACEHOLDER, checkpoint) for word in self.words),
            tuple(text.replace(PLACEHOLDER, checkpoint) for text in self.params),
        )


def parse_resume_arguments(texts: Sequence[str], *, what: str = "--resume-arg") -> ResumeArguments:
    """Splits the texts into words as a shell does. Raises SpecError."""
    words: list[str] = []
    params: list[str] = []
    for text in texts:
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise SpecError(
                f"{what}: `{text}` cannot be split into words: {error}", hints=("close the quotes",)
            ) from None
        if not parts:
            raise SpecError(f"{what}: it is empty", hints=("for example '--resume {checkpoint}'",))
        if "{checkpoint" in text.replace(PLACEHOLDER, ""):
            raise SpecError(
                f"{what}: `{text}` has `{{checkpoint` without its end", hints=(f"write `{PLACEHOLDER}`",)
            )
        if parts[0] not in _PARAM_WORDS:
            words += parts
            continue
        if len(parts) % 2 or any(word not in _PARAM_WORDS for word in parts[::2]):
            raise _param_error(text, what)
        for param in parts[1::2]:
            name, equals, _ = param.partition("=")
            if not equals or not name:
                raise _param_error(text, what)
            params.append(param)
    return ResumeArguments(tuple(words), tuple(params))


def check_resume_arguments(texts: Sequence[str], *, what: str = "--resume-arg") -> tuple[str, ...]:
    """Returns the texts. Raises SpecError for a bad one."""
    parse_resume_arguments(texts, what=what)
    return tuple(texts)


def _param_error(text: str, what: str) -> SpecError:
    return SpecError(
        f"{what}: `{text}` is not a parameter with its value",
        hints=("write `-p NAME=VALUE`, for example '-p init_from=resume'",),
    )
