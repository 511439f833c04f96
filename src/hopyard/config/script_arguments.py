"""Arguments of a script as parameters: `--lr 0.1` becomes the parameter `lr`, and `--lr {lr}` remains in the
command."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hopyard.config.key_values import Value, parse_value
from hopyard.domain.command_template import is_template
from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption, format_param

_OPTION = re.compile(r"--[A-Za-z][\w.-]*", re.ASCII)
_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w.-]*)=(.*)", re.ASCII | re.DOTALL)
_NUMBER = re.compile(r"-(?:\d|\.\d).*", re.ASCII)
_SCIENTIFIC = re.compile(r".*(?:\.\d*[eE]|[eE][+-]).*", re.ASCII)  # not `12345e7`: perhaps a commit


@dataclass(slots=True)
class ScriptArguments:
    """words: the arguments, with a placeholder for each value that is a parameter."""

    words: list[str] = field(default_factory=list)
    params: dict[str, Value] = field(default_factory=dict)


def split_arguments(words: Sequence[str], form: ParamFormat) -> ScriptArguments:
    """Returns the arguments with the parameters that they contain. Words that cannot be read with certainty
    remain in the command unchanged."""
    if form.style is ParamStyle.HYDRA:
        return _split_overrides(words, form)
    if form.style is ParamStyle.ARGS:
        return _split_options(words, form)
    return ScriptArguments(list(words))


def _split_overrides(words: Sequence[str], form: ParamFormat) -> ScriptArguments:
    result = ScriptArguments()
    is_sweep = "-m" in words or "--multirun" in words
    found = [_OVERRIDE.fullmatch(word) for word in words]
    counts = Counter(each[2] for each in found if each)
    for word, each in zip(words, found, strict=True):
        if each is None or is_sweep or counts[each[2]] > 1 or is_template(each[3]):
            result.words.append(word)
        else:
            result.params[each[2]] = to_value(each[3], None, form)
            result.words.append(f"{each[1]}{each[2]}={{{each[2]}}}")
    return result


def _split_options(words: Sequence[str], form: ParamFormat) -> ScriptArguments:
    by_word = {
        word: (name, option)
        for name, option in form.options.items()
        for word in (option.word, option.off, *option.aliases)
        if word.startswith("-")
    }
    own_options = (word.partition("=")[0] for word in own_words(words, form) if word.startswith("-"))
    counts = Counter(_name_of(head, by_word) for head in own_options)
    result = ScriptArguments()
    position = 0
    while position < len(words):
        word = words[position]
        option = by_word[word][1] if word in by_word else None
        # before a remainder, it is unclear where a list ends
        is_unclear = option is not None and option.is_open_list and form.has_positional_remainder
        if word == "--" or is_unclear or _begins_remainder(word, form.remainder):
            result.words += words[position:]
            break
        if option is not None and option.kind is OptionKind.FLAG and _separates(words, position, by_word):
            result.words.append(word)
            position += 1
            continue
        position += 1 + _read_option(word, words[position + 1 :], form, by_word, counts, result)
    return result


def _separates(words: Sequence[str], position: int, by_word: dict[str, tuple[str, ScriptOption]]) -> bool:
    """Returns whether the option before this flag might take the word behind it if the flag went away."""
    if not _values_behind(words[position + 1 :]):
        return False
    for index in range(position - 1, -1, -1):
        word = words[index]
        if not _values_behind([word]):  # an option
            option = by_word[word][1] if word in by_word else None
            kind, count = (None, 0) if option is None else (option.kind, option.count)
            if kind not in (OptionKind.FLAG, OptionKind.COUNT):
                needed = (
                    1 if kind is OptionKind.VALUE else count
                )  # how many values it takes, if that is known
                has_values = 0 < needed <= len(_values_behind(words[index + 1 :]))
                return not ("=" in word or has_values)
    return False


def own_words(words: Sequence[str], form: ParamFormat) -> Sequence[str]:
    """Returns the arguments before those that the script may hand to another program. Behind a list, it is
    unclear where these begin, so all count."""
    lists = {
        word: option
        for option in form.options.values()
        if option.kind is OptionKind.LIST
        for word in (option.word, *option.aliases)
    }
    values = 0  # how many words may belong to the option before them
    for index, word in enumerate(words):
        option = lists.get(word)
        if option is not None and option.is_open_list and form.has_positional_remainder:
            return words
        if word == "--" or (values <= 0 and _begins_remainder(word, form.remainder)):
            return words[:index]
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            values = 0 if "=" in word else max(1, option.count if option is not None else 1)
        else:
            values = 0 if is_template(word) else values - 1  # `{betas}` is the whole list
    return words


def _begins_remainder(word: str, remainder: str) -> bool:
    """Returns whether the words from here on may be those of another program. remainder: the option or the
    positional argument that takes them; "" if the script has none."""
    return word == remainder if remainder.startswith("-") else bool(remainder) and not word.startswith("-")


def _read_option(
    word: str,
    following: Sequence[str],
    form: ParamFormat,
    by_word: dict[str, tuple[str, ScriptOption]],
    counts: Counter[str],
    result: ScriptArguments,
) -> int:
    """Adds one word, and the value behind it. Returns the number of words that the option takes from those
    that follow."""
    head, equals, text = word.partition("=")
    name, option = by_word.get(head, (_name_of(head, by_word), None))
    is_option = option is not None or (not form.complete and _OPTION.fullmatch(head) is not None)
    if not is_option or counts[name] > 1:
        result.words.append(word)
        return 0
    if equals:
        is_list = option is not None and option.kind in (OptionKind.LIST, OptionKind.REPEATED)
        if is_list or is_template(text):  # another list would have several words
            result.words.append(word)
        else:
            result.params[name] = to_value(text, option, form)
            result.words.append(f"{head}={{{name}}}")
        return 0
    values = list(_values_behind(following))
    kind = form.default if option is None else option.kind
    if kind is OptionKind.FLAG and option is not None:
        if form.complete:
            result.params[name] = head != option.off
        else:
            result.words.append(word)  # at another place it could belong to another subcommand
        return 0
    if option is not None and option.count:
        values = values[: option.count]
    if kind is OptionKind.LIST and values and not any(map(is_template, values)):
        result.params[name] = " ".join(values)
        result.words += [head, f"{{{name}}}"]
        return len(values)
    if kind is OptionKind.VALUE and values and not is_template(values[0]):
        result.params[name] = to_value(values[0], option, form)
        result.words += [head, f"{{{name}}}"]
        return 1
    result.words.append(word)
    return 0


def _values_behind(following: Sequence[str]) -> Sequence[str]:
    for index, word in enumerate(following):
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            return following[:index]
    return following


def _name_of(head: str, by_word: dict[str, tuple[str, ScriptOption]]) -> str:
    return by_word[head][0] if head in by_word else head.lstrip("-").replace("-", "_")


def to_value(text: str, option: ScriptOption | None, form: ParamFormat) -> Value:
    """Returns the value of an argument: a number only where the command is the same with it. `3.10` and `007`
    stay texts."""
    value = parse_value(text)
    if isinstance(value, str):
        return text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    same = format_param(value, form.style) == text
    is_numeric = option.numeric if option is not None else _SCIENTIFIC.fullmatch(text) is not None
    exact = same or (is_number and is_numeric)
    return value if exact else text
