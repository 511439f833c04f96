"""How a script takes the parameters of a run: as arguments, in Hydra's form, by variables, in a file, or by
`hop.params`."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from hopyard.backports import StrEnum, dataclass
from hopyard.domain.command_template import fill_template, placeholder_names

if sys.version_info >= (3, 10):
    ParamValue = str | int | float | bool | None
else:  # annotations, which name it, are not evaluated
    ParamValue = object
_MAX_COUNT = 100  # of the words of one option
SHELL_SOURCE = "variables of "  # begins the source of a form that a shell script shows


class ParamStyle(StrEnum):
    SDK = "sdk"  # `hop.params` reads them
    ARGS = "args"  # `--lr 0.1`
    HYDRA = "hydra"  # `lr=0.1`
    ENV = "env"  # variables
    JSON = "json"  # one JSON text as the last argument
    FILE = "file"  # a file of the working folder
    NOTEBOOK = "notebook"  # variables of a notebook, after its cell tagged `parameters`
    NONE = "none"  # the command is used unchanged


class OptionKind(StrEnum):
    VALUE = "value"  # `--lr 0.1`
    JOINED = "joined"  # `--lr=0.1`
    FLAG = "flag"  # `--amp` for true, and `off` for false
    LIST = "list"  # `--layers 64 32`
    REPEATED = "repeated"  # `--layers 64 --layers 32`
    COUNT = "count"  # `-v -v` for 2
    POSITIONAL = "positional"  # `0.1`
    REMAINDER = "remainder"  # all words behind it
    OMITTED = "omitted"  # not given


class OptionPlace(StrEnum):
    """Where an option may be in the arguments of its script."""

    ANY = "any"
    FIRST = "first"  # before the words of a subcommand, or before positional words
    LAST = "last"  # behind the name of its subcommand


@dataclass(frozen=True, slots=True)
class ScriptOption:
    """One option of a script. word: as written on its command line. off: the word for false, if there is one.
    numeric: whether its values are numbers. text: whether they are texts, which it gets as typed. aliases:
    its other words. count: of the words of a list, 0 for any number."""

    word: str
    kind: OptionKind = OptionKind.VALUE
    off: str = ""
    numeric: bool = False
    aliases: tuple[str, ...] = ()
    text: bool = False
    place: OptionPlace = OptionPlace.ANY
    count: int = 0

    @property
    def is_open_list(self) -> bool:
        """Whether it takes all words that follow, up to the next option."""
        return self.kind is OptionKind.LIST and not self.count


@dataclass(frozen=True, slots=True)
class ParamFormat:
    """The form in which a run's parameters reach its script.

    source: where the form was found, for users (`argparse in main.py`). script: the word of the command that
    names the script; only commands with it get arguments, and "" means all commands. options: by the name of
    a parameter, the option that takes it. complete: whether the script takes no other parameters.

    default: the kind of option for names that are not in `options`. file: the path of `ParamStyle.FILE`,
    relative to the working folder.
    """

    style: ParamStyle = ParamStyle.SDK
    source: str = ""
    script: str = ""
    options: Mapping[str, ScriptOption] = field(default_factory=dict)
    complete: bool = False
    default: OptionKind = OptionKind.VALUE
    file: str = ""

    @property
    def remainder(self) -> str:
        """The option, or the name of the positional argument, that takes all further words, as that of a
        launcher does; "" without one."""
        options = self.options.values()
        return next((option.word for option in options if option.kind is OptionKind.REMAINDER), "")

    @property
    def has_positional_remainder(self) -> bool:
        return bool(self.remainder) and not self.remainder.startswith("-")

    def takes(self, name: str) -> bool:
        """Returns whether the script may take this parameter."""
        option = self.find_option(name)
        return not self.complete if option is None else option.kind is not OptionKind.OMITTED

    def canonical_name(self, name: str) -> str:
        """Returns the name of the option that takes this parameter, else the name itself. An option has the
        names of its words, too."""
        if name in self.options:
            return name
        wanted = _plain_name(name)
        keys = (key for key in self.options if _plain_name(key) == wanted)
        words = (
            key
            for key, option in self.options.items()
            if any(_plain_name(word) == wanted for word in (option.word, *option.aliases))
        )
        return next(keys, next(words, name))

    def find_option(self, name: str) -> ScriptOption | None:
        """Returns the option that takes this parameter; `-` and `_` are the same."""
        return self.options.get(self.canonical_name(name))


@dataclass(frozen=True, slots=True)
class FilledCommand:
    """The command of a replica as it runs. variables: in addition to its environment. given: the
    parameters that the command or the variables contain, with the word that takes each, "" if that is
    unknown. placed: those without an option before their place in the command."""

    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    placed: tuple[str, ...] = ()


def param_format_from_json(value: Mapping[str, Any]) -> ParamFormat:
    """Reads the JSON of a run's spec, which may lack fields. Standard library only, because it is read inside
    users' processes."""
    options = {
        name: ScriptOption(
            **{
                **option,
                "kind": OptionKind(option.get("kind", OptionKind.VALUE)),
                "place": OptionPlace(option.get("place", OptionPlace.ANY)),
                "aliases": tuple(option.get("aliases", ())),
            }
        )
        for name, option in value.get("options", {}).items()
    }
    style = ParamStyle(value.get("style", ParamStyle.SDK))
    default = OptionKind(value.get("default", OptionKind.VALUE))
    return ParamFormat(**{**value, "style": style, "default": default, "options": options})


def without_added_options(form: ParamFormat | None, names: Iterable[str]) -> ParamFormat | None:
    """Returns the form for a script that has got parameters of these names only from `hop.params`: what has
    no option for one does not get it."""
    unknown = [] if form is None else [name for name in names if form.find_option(name) is None]
    if form is None or not unknown:
        return form
    hidden = {name: ScriptOption("", OptionKind.OMITTED) for name in unknown}
    return replace(form, options={**form.options, **hidden})


def fill_command(
    words: Sequence[str],
    params: Mapping[str, ParamValue],
    form: ParamFormat | None,
    *,
    extra: Mapping[str, str] | None = None,
) -> FilledCommand:
    """Returns the command with its placeholders filled, and with the parameters that it does not name added
    in the form of the script. extra: values of other placeholders, such as the folders of datasets."""
    form = form or ParamFormat()
    values = {name: format_param(value, form.style) for name, value in params.items()}
    named = [name for name in placeholder_names(words) if name in params]
    filled = _fill(words, {**(extra or {}), **values}, form)
    others = {name: value for name, value in params.items() if name not in named}
    if form.script and form.script not in words:
        others = {}
    others = {name: value for name, value in others.items() if form.takes(name)}
    variables: dict[str, str] = {}
    if form.style in (ParamStyle.ARGS, ParamStyle.HYDRA):
        first, behind = _split_by_place(others, form)
        end = _end_of_options(filled, form)
        filled[end:end] = added_words(behind, form)
        start = filled.index(form.script) + 1 if form.script in filled else len(filled)
        filled[start:start] = added_words(first, form, before=filled[start:])
    elif form.style is ParamStyle.JSON and others:
        filled.append(json.dumps(others))
    elif form.style is ParamStyle.ENV:
        variables = {_variable(name, form): values[name] for name in others}
    elif form.style not in (ParamStyle.FILE, ParamStyle.NOTEBOOK):
        others = {}
    heads = {name: _find_head(words, name) for name in named}
    options = {name: option.word if (option := form.find_option(name)) else "" for name in others}
    placed = tuple(name for name, head in heads.items() if not head)
    return FilledCommand(tuple(filled), variables, {**options, **heads}, placed)


def added_words(
    params: Mapping[str, ParamValue], form: ParamFormat, *, before: Sequence[str] = ()
) -> list[str]:
    """Returns the arguments that give these parameters: options, then positional arguments, then the options
    of a subcommand. before: the arguments that follow them."""
    groups: dict[str, list[tuple[ScriptOption, ParamValue]]] = {}
    for name, value in params.items():
        option = form.find_option(name)
        if option is None:
            word = name if form.style is ParamStyle.HYDRA else f"--{name}"
            option = ScriptOption(word, OptionKind.JOINED if form.style is ParamStyle.HYDRA else form.default)
        if not option_words(option, value, form.style):
            continue  # a flag that is false ends no list before it
        is_plain = option.kind in (OptionKind.POSITIONAL, OptionKind.REMAINDER)
        group = option.kind if is_plain else "last" if option.place is OptionPlace.LAST else "options"
        groups.setdefault(group, []).append((option, value))
    options, positional = groups.get("options", []), groups.get(OptionKind.POSITIONAL, [])
    rest = groups.get(OptionKind.REMAINDER, [])
    if positional or form.has_positional_remainder:  # a list would take the words of these
        options.sort(key=lambda each: not each[0].is_open_list)
        if options and options[-1][0].is_open_list and not form.has_positional_remainder:
            options, positional = positional, options
    ordered = [*options, *positional, *groups.get("last", []), *rest]
    words = [option_words(option, value, form.style) for option, value in ordered]
    if form.has_positional_remainder and options and options[-1][0].is_open_list:
        following = [*(word for each in words[len(options) :] for word in each), *before]
        if following and not following[0].startswith("-"):
            words[len(options) - 1] = _ended_list(words[len(options) - 1])
    return [word for each in words for word in each]


def _ended_list(words: Sequence[str]) -> list[str]:
    """Returns the words of a list that takes no word that follows."""
    return ["=".join(words)] if len(words) == 2 else [*words, "--"]


def option_words(option: ScriptOption, value: ParamValue, style: ParamStyle = ParamStyle.ARGS) -> list[str]:
    """Returns the arguments that give one option its value."""
    text = format_param(value, style)
    if option.kind is OptionKind.FLAG and is_true(value) is not None:
        return [word for word in [option.word if is_true(value) else option.off] if word]
    if option.kind is OptionKind.COUNT and isinstance(value, int) and 0 <= value <= _MAX_COUNT:
        return [option.word] * value
    if option.kind in (OptionKind.JOINED, OptionKind.FLAG, OptionKind.COUNT):
        return [f"{option.word}={text}"]
    if option.kind is OptionKind.LIST:
        return [option.word, *split_list(text)]
    if option.kind is OptionKind.REPEATED:
        return [word for each in split_list(text) for word in (option.word, each)]
    if option.kind is OptionKind.POSITIONAL:
        return [text]
    if option.kind is OptionKind.REMAINDER:
        return [*([option.word] if option.word.startswith("-") else []), *text.split()]
    if text.startswith("-") and option.word.startswith("--"):
        return [f"{option.word}={text}"]  # a separate word would be taken for an option
    return [option.word, text]


def _split_by_place(
    params: Mapping[str, ParamValue], form: ParamFormat
) -> tuple[dict[str, ParamValue], dict[str, ParamValue]]:
    """Returns the parameters with options that precede all words of the script, and the others. The last of
    the first with a word is no list, which would take a word that follows. Behind the words of a launcher, no
    option would be its own."""
    options = {name: form.find_option(name) for name in params}
    first = [name for name, option in options.items() if option and option.place is OptionPlace.FIRST]
    lists = [name for name in first if (option := options[name]) and option.is_open_list]
    ordered = [*lists, *(each for each in first if each not in lists)]
    ending = {name: params[name] for name in first if name not in lists}
    if not added_words(ending, form) and not form.has_positional_remainder:
        ordered = []
    return {n: params[n] for n in ordered}, {n: v for n, v in params.items() if n not in ordered}


def format_param(value: ParamValue, style: ParamStyle = ParamStyle.ARGS) -> str:
    """Returns the text of a value on a command line: as Python writes it, or as Hydra reads it."""
    if style is ParamStyle.HYDRA:
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
    return str(value)


def is_true(value: ParamValue) -> bool | None:
    """Returns the value of a flag; None for a value that is not one."""
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
        str(value).lower()
    )


def split_list(text: str) -> list[str]:
    """Returns the words of a list: `64 32`, `64,32` or `[64, 32]`."""
    return text.strip("[]()").replace(",", " ").split()


def unread_names(given: Iterable[str], read: Collection[str]) -> list[str]:
    """Returns the names of parameters that no process read; `-` and `_` are the same."""
    known = {name.replace("-", "_") for name in read}
    return [name for name in given if name.replace("-", "_") not in known]


def _fill(words: Sequence[str], values: Mapping[str, str], form: ParamFormat) -> list[str]:
    filled: list[str] = []
    for word in words:
        name = word.removeprefix("$")[1:-1]
        option = form.find_option(name) if word in (f"{{{name}}}", f"${{{name}}}") else None
        if option is not None and option.kind is OptionKind.LIST and name in values:
            filled += split_list(values[name])
        else:
            filled += fill_template([word], values)
    return filled


def _plain_name(word: str) -> str:
    return word.lstrip("-+").replace("-", "_")


def _end_of_options(words: Sequence[str], form: ParamFormat) -> int:
    """Returns the position behind the last word that may be an option of the script: that of its `--`, or of
    the option that takes all further words; else the end."""
    start = words.index(form.script) if form.script in words else len(words)
    ends = ("--", *([form.remainder] if form.remainder.startswith("-") else []))
    return next((index for index in range(start, len(words)) if words[index] in ends), len(words))


def _find_head(words: Sequence[str], name: str) -> str:
    """Returns the option before the place of a parameter: `--lr` of `--lr {lr}` and of `--lr={lr}`. A word
    with spaces, such as a command of a shell, shows none."""
    for index, word in enumerate(words):
        if name in placeholder_names([word]):
            if any(map(str.isspace, word)):
                return ""
            head, equals, _ = word.partition("=")
            if equals and name not in placeholder_names([head]):
                return head
            before = words[index - 1] if index else ""
            return before if before.startswith("-") else ""
    return ""


def _variable(name: str, form: ParamFormat) -> str:
    option = form.find_option(name)
    return option.word if option else name.replace("-", "_").replace(".", "_")


_UNREAD_SENTENCE = "nothing has read "


def notebook_hint(name: str) -> str:
    """Returns how a notebook takes a parameter."""
    return f"assign `{name} = …` in one cell of the notebook, and tag that cell `parameters`"


def unread_sentence(names: Sequence[str]) -> str:
    """Returns the sentence for users."""
    return f"{_UNREAD_SENTENCE}{', '.join(names)}: the recorded value had no effect"


def names_of_sentence(sentence: str) -> list[str]:
    """Returns the names in a sentence of `unread_sentence`."""
    return sentence.removeprefix(_UNREAD_SENTENCE).rpartition(":")[0].split(", ")
