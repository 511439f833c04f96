"""Decides how the parameters of a run reach its script, and states it at the submission."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.client.feedback import Notify
from hopyard.client.param_types import check_types, folder_reader
from hopyard.client.settings_file import check_settings
from hopyard.config.key_values import Value
from hopyard.config.run_request import RunRequest
from hopyard.config.script_arguments import own_words, split_arguments, to_value
from hopyard.config.search.study_request import StudyRequest
from hopyard.domain.command_template import check_template, placeholder_names
from hopyard.domain.notebook import notebook_of
from hopyard.domain.param_format import (
    SHELL_SOURCE,
    OptionKind,
    OptionPlace,
    ParamFormat,
    ParamStyle,
    ScriptOption,
    param_format_from_json,
)
from hopyard.domain.script_analysis.analysis import analyse_notebook, analyse_script
from hopyard.domain.script_analysis.source_tree import ReadSource
from hopyard.domain.space import Choice, Constant, Parameter, Space
from hopyard.domain.study import DEFAULT_BUDGET_PARAM, StudySpec
from hopyard.domain.suggest import close_names
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

# options for the number of epochs, the first that a script has
OBJECTIVE_MODULE = "hopyard.sdk.objective"
_EPOCH_OPTIONS = ("num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "nepochs", "epoch")
_STYLE_WORDS = {
    ParamStyle.ARGS: "arguments",
    ParamStyle.HYDRA: "overrides name=value",
    ParamStyle.ENV: "environment variables",
    ParamStyle.JSON: "one JSON argument",
    ParamStyle.FILE: "values of the file",
    ParamStyle.NOTEBOOK: "variables",
}
_DECLARED = (ParamStyle.ARGS, ParamStyle.NOTEBOOK)  # the script declares its parameters
_ADDED_UP = (OptionKind.FLAG, OptionKind.COUNT, OptionKind.REPEATED)
_WORD_STYLES = (ParamStyle.ARGS, ParamStyle.HYDRA)  # parameters are words of the command
_SHELLS = frozenset((b"sh", b"bash", b"dash", b"ksh", b"zsh"))
_MAX_FIRST_LINE = 256
_MAX_OPTIONS, _MAX_ALIASES = 1000, 16  # of a run that the server stores
BY_HAND = "--params-as"  # the source of a form that the user chose
STYLES = ("args", "hydra", "env", "json", "file:PATH", "sdk", "none")


@dataclass(frozen=True, slots=True)
class ArgumentChanges:
    """The changes of a fork. removed: names of parameters that it does not inherit. roles, form: None keeps
    that of the run."""

    params: Mapping[str, Value]
    removed: tuple[str, ...] = ()
    roles: list[api.RoleIn] | None = None
    form: ParamFormat | None = None


def with_param_format(
    request: RunRequest,
    folder: Path,
    *,
    notify: Notify,
    searched: Iterable[str] = (),
    new_keys: Mapping[str, str] | None = None,
    what: str = "-p",
) -> RunRequest:
    """Returns the request with the form of its parameters, and with the parameters that its arguments
    contain.

    folder: the code. searched: names of further parameters, which the trials of a study get. new_keys: those
    among them that Hydra adds, with their marks. Raises SpecError for a parameter that the script does not
    take, that is given twice, or has a value of another type than its default.
    """
    forms = [_find_form(role.command, folder) for role in request.roles]
    form = _chosen_form(request.params_as, next((each for each in forms if each is not None), None))
    if form is not None:
        form = _storable_form(form)
    places = placeholder_names(word for role in request.roles for word in role.command)
    given = _as_typed(request.params, request.param_texts, form, places)
    given, form = _add_new_keys(given, form, new_keys or {})
    request = replace(request, params=_canonical(given, form), param_texts={})
    request = _split_roles(request, form)
    searched = list(searched)
    names = list(dict.fromkeys([*request.params, *searched]))
    words = [word for role in request.roles for word in role.command]
    check_template(words, names, what="command")
    others = [name for name in names if name not in placeholder_names(words)]
    _check_flags(others, [role.command for role in request.roles], form, what)
    _check_names(others, form, notify, what)
    typed = {name: request.params[name] for name in others if name in request.params}
    check_types(typed, form, folder_reader(folder))
    if form is not None and form.style is ParamStyle.FILE:
        check_settings(others, searched, form.file, folder, notify)
    return replace(request, param_format=form)


def with_trial_format(request: StudyRequest, folder: Path, *, notify: Notify) -> StudyRequest:
    """Returns the request of a study with the form of its trials' parameters.

    A script that does not take the parameter of the budget under its name gets it as `num_epochs` or a
    similar option, and otherwise not at all.
    """
    if request.trial is None:
        return request
    study = request.study
    names = [parameter.name for parameter in study.space.parameters]
    budget = [study.budget_param] if study.has_budget else []
    found = [_find_form(role.command, folder) for role in request.trial.roles]
    form = _chosen_form(request.trial.params_as, next((each for each in found if each is not None), None))
    words = [word for role in request.trial.roles for word in role.command]
    is_default = study.budget_param == DEFAULT_BUDGET_PARAM  # another name is a request of the user
    if form is not None and is_default and budget and budget[0] not in placeholder_names(words):
        taken = {form.canonical_name(name) for name in names}
        budget = _budget_names(budget[0], form, taken)
    trial = with_param_format(
        request.trial,
        folder,
        notify=notify,
        searched=[*names, *budget],
        new_keys=request.new_keys,
        what="the search over",
    )
    study = replace(study, space=_typed_space(study.space, request.texts, trial))
    if budget:
        _check_budget(study, budget[0], trial)
    if trial.param_format is not None and study.has_budget and not budget:
        omitted = {study.budget_param: ScriptOption("", OptionKind.OMITTED)}
        form = replace(trial.param_format, options={**trial.param_format.options, **omitted})
        trial = replace(trial, param_format=form)
    elif budget:
        study = replace(study, budget_param=budget[0])
    return replace(request, study=study, trial=trial)


def _typed_space(space: Space, texts: Mapping[str, Sequence[str]], trial: RunRequest) -> Space:
    """Returns the space with its values as typed where the script gets texts."""
    places = placeholder_names(word for role in trial.roles for word in role.command)

    def typed(name: str, values: Sequence[Value]) -> tuple[Value, ...]:
        words = texts.get(name, ())
        if len(words) != len(values):
            return tuple(values)
        return tuple(
            value
            if isinstance(value, str)
            else _as_typed({name: value}, {name: word}, trial.param_format, places)[name]
            for value, word in zip(values, words, strict=True)
        )

    def with_values(parameter: Parameter) -> Parameter:
        domain = parameter.domain
        if isinstance(domain, Choice):
            return replace(parameter, domain=Choice(typed(parameter.name, domain.values)))
        if isinstance(domain, Constant):
            return replace(parameter, domain=Constant(typed(parameter.name, [domain.value])[0]))
        return parameter

    return Space(tuple(map(with_values, space.parameters)))


def _as_typed(
    params: Mapping[str, Value],
    texts: Mapping[str, str],
    form: ParamFormat | None,
    places: Collection[str],
) -> Mapping[str, Value]:
    """Returns the parameters, as typed where the script gets texts: `true` is not `True`. places: names of
    parameters with a place in the command."""
    form = form or ParamFormat()
    typed = {}
    for name, text in texts.items():
        option = form.find_option(name) if form.style is ParamStyle.ARGS else None
        is_text = form.style is ParamStyle.ENV or (name in places and form.style is not ParamStyle.HYDRA)
        if is_text if option is None else option.text:
            typed[name] = to_value(text, option, form)
    return {**params, **typed}


def _canonical(params: Mapping[str, Value], form: ParamFormat | None) -> dict[str, Value]:
    """Returns the parameters by the names of their options. Raises SpecError for two of one option."""
    if form is None:
        return dict(params)
    named: dict[str, str] = {}
    for name in params:
        other = named.setdefault(form.canonical_name(name), name)
        if other != name:
            raise SpecError(f"-p {name}: `{other}` is the same option", hints=("give it once",))
    return {canonical: params[name] for canonical, name in named.items()}


def _check_budget(study: StudySpec, name: str, trial: RunRequest) -> None:
    """Raises SpecError if the trials have another value of the parameter that passes their budget."""
    given, largest = trial.params.get(name), study.max_epochs
    if given is not None and given != largest:
        unit = study.budget_unit
        raise SpecError(
            f"`{name}` is {given} for all trials, but the study sets it to the budget of each trial, up to "
            f"{largest} {unit}",
            hints=(
                f"remove `{name}`, or write `{unit}: {given}` as the budget of the study",
                f"without `{unit}` in the study, the script runs with its own `{name}`",
            ),
        )


def _budget_names(name: str, form: ParamFormat, taken: Collection[str]) -> list[str]:
    """Returns the parameter of the script that is the number of epochs, as a list; none if it has none."""
    if form.style not in (*_DECLARED, ParamStyle.HYDRA) or form.find_option(name) is not None:
        return [name]
    similar = [form.canonical_name(each) for each in _EPOCH_OPTIONS if form.find_option(each) is not None]
    if form.style is ParamStyle.HYDRA and not similar:  # the only one of a group: `trainer.max_epochs`
        inner = [key for key in form.options if key.rpartition(".")[2] in (name, *_EPOCH_OPTIONS)]
        similar = inner if len(inner) == 1 else []
    return [each for each in similar if each not in taken][:1]


def _add_new_keys(
    params: Mapping[str, Value], form: ParamFormat | None, searched: Mapping[str, str]
) -> tuple[Mapping[str, Value], ParamFormat | None]:
    """Returns the parameters without Hydra's marks for new keys, and the form with these as options: `+lr`.
    searched: marked words of the parameters of a study, by name. Raises SpecError for another form."""
    marked = {name: name.lstrip("+") for name in params if name.startswith("+")}
    words = {**searched, **{plain: name for name, plain in marked.items()}}
    if not words:
        return params, form
    plain, name = next(iter(words.items()))
    if form is None or form.style is not ParamStyle.HYDRA:
        raise SpecError(f"-p {name}: only Hydra adds keys by `+`", hints=(f"write `-p {plain}=…`",))
    if len({*marked.values(), *(each for each in params if each not in marked)}) < len(params):
        raise SpecError(f"-p {name}: `{plain}` is given twice", hints=("give it once",))
    added = {plain: ScriptOption(word, OptionKind.JOINED) for plain, word in words.items()}
    options = {**form.options, **added}
    return {marked.get(key, key): value for key, value in params.items()}, replace(form, options=options)


def _chosen_form(params_as: str, found: ParamFormat | None) -> ParamFormat | None:
    """Returns the form of `--params-as`, with the options that the script declares."""
    if not params_as:
        return found
    style, _, file = params_as.partition(":")
    if style not in list(ParamStyle) or (style == ParamStyle.FILE) != bool(file):
        raise SpecError(
            f"--params-as: `{params_as}` is no form of parameters", hints=(f"use {', '.join(STYLES)}",)
        )
    if file and (Path(file).is_absolute() or ".." in Path(file).parts):
        raise SpecError(
            f"--params-as: {file} is outside the folder of the code", hints=("give a path in the folder",)
        )
    if found is not None and found.style == style:
        return found
    is_notebook = found is not None and found.style is ParamStyle.NOTEBOOK
    if style == ParamStyle.NOTEBOOK or (is_notebook and style in ("args", "hydra", "json")):
        problem = "a notebook has no command line" if is_notebook else "the command runs no notebook"
        raise SpecError(f"--params-as {style}: {problem}", hints=("leave it out",))
    default = OptionKind.JOINED if style == ParamStyle.HYDRA else OptionKind.VALUE
    script = "" if found is None else found.script
    return ParamFormat(ParamStyle(style), BY_HAND, script, default=default, file=file)


def _split_roles(request: RunRequest, form: ParamFormat | None) -> RunRequest:
    """Returns the request with the arguments of its script as parameters."""
    if form is None or form.style not in _WORD_STYLES or len(request.roles) != 1:
        return request
    (role,) = request.roles
    start = argument_start(role.command, form.script)
    arguments = split_arguments(role.command[start:], form)
    if not arguments.params:
        return request
    check_distinct(request.params, arguments.params)
    command = (*role.command[:start], *arguments.words)
    return replace(
        request, roles=(replace(role, command=command),), params={**arguments.params, **request.params}
    )


def check_distinct(options: Mapping[str, Value], arguments: Mapping[str, Value]) -> None:
    """Raises SpecError for a parameter that is given both by -p and after `--`."""
    known = {name.replace("-", "_"): name for name in arguments}
    for name in options:
        if (other := known.get(name.replace("-", "_"))) is not None:
            raise SpecError(
                f"-p {name}: the arguments after `--` set `{other}` as well", hints=("give it once",)
            )


def fork_changes(
    roles: Sequence[api.RoleIn],
    form: ParamFormat | None,
    old_params: Mapping[str, Value],
    params: Mapping[str, Value],
    arguments: Sequence[str],
    *,
    texts: Mapping[str, str] | None = None,
    read: ReadSource | None = None,
) -> ArgumentChanges:
    """Returns the changes of a fork with other parameters or other arguments of its script. New arguments
    replace all arguments, and with them the parameters that were arguments.

    texts: of values, as typed. read: returns a file of the fork's code; by default, types are not checked.
    Raises SpecError.
    """
    places = placeholder_names(word for role in roles for word in role["command"])
    params, extended = _add_new_keys(_as_typed(params, texts or {}, form, places), form, {})
    _canonical(params, extended)
    changes = _fork_changes(roles, extended or ParamFormat(), old_params, params, arguments)
    if read is not None:
        commands = changes.roles or roles
        named = placeholder_names(word for role in commands for word in role["command"])
        given = {name: value for name, value in changes.params.items() if name not in named}
        check_types(given, extended, read)
    return changes if extended is form else replace(changes, form=extended)


def fork_form(
    roles: Sequence[api.RoleIn],
    form: ParamFormat | None,
    params: Iterable[str],
    folder: Path,
    *,
    notify: Notify,
    arguments: Sequence[str] = (),
) -> ParamFormat:
    """Returns the form of a fork with the code of this folder. One that was chosen by hand remains.

    form, params: of the run, or of the trials of a study. arguments: replace all arguments of the script, and
    with them these parameters. Raises SpecError for a parameter that the new script does not take.
    """
    if form is not None and form.source == BY_HAND:
        return form
    commands = [role["command"] for role in roles]
    forms = [_find_form(command, folder) for command in commands]
    found = next((each for each in forms if each is not None), None)
    if found is not None and form is not None:
        found = replace(found, options={**_kept_options(form, found), **found.options})
    named = placeholder_names(word for command in commands for word in command)
    others = [name for name in params if name not in named]
    if arguments and found is not None and found.style in _WORD_STYLES:
        others = []
    _check_names(others, found, notify, "the parameter")
    return ParamFormat() if found is None else _storable_form(found)


def fork_trial_form(study: Mapping[str, Any], folder: Path, *, notify: Notify) -> ParamFormat | None:
    """Returns the form of the trials of a study with the code of this folder; None for a study without runs
    of trials. study: its StudySpec as JSON. Raises SpecError."""
    trial = study.get("trial")
    if not trial:
        return None
    stored = trial.get("param_format")
    form = None if stored is None else param_format_from_json(stored)
    names = [*(trial.get("params") or {}), *(each["name"] for each in study["space"])]
    return fork_form(trial["roles"], form, names, folder, notify=notify)


def _kept_options(old: ParamFormat, new: ParamFormat) -> dict[str, ScriptOption]:
    """Returns options that were chosen at the submission, and that no script declares: keys that Hydra adds,
    and the budget of a trial that its script does not take."""
    return {
        name: option
        for name, option in old.options.items()
        if new.find_option(name) is None
        and (
            option.kind is OptionKind.OMITTED
            or (option.word.startswith("+") and new.style is ParamStyle.HYDRA)
        )
    }


def _fork_changes(
    roles: Sequence[api.RoleIn],
    form: ParamFormat,
    old_params: Mapping[str, Value],
    params: Mapping[str, Value],
    arguments: Sequence[str],
) -> ArgumentChanges:
    are_replaced = bool(arguments) and form.style in _WORD_STYLES
    kept_params = {} if are_replaced else old_params
    by_name = {name.replace("-", "_"): name for name in kept_params}
    changed = {by_name.get(n.replace("-", "_"), form.canonical_name(n)): v for n, v in params.items()}
    unknown = [n for n in changed if n not in kept_params and form.complete and form.find_option(n) is None]
    if unknown and form.style is ParamStyle.ARGS:
        raise _no_option(unknown[0], form, "-p")
    if not arguments:
        commands = [role["command"] for role in roles]
        named = placeholder_names(word for command in commands for word in command)
        _check_flags([name for name in changed if name not in named], commands, form, "-p")
        return ArgumentChanges(changed)
    if len(roles) != 1:
        raise SpecError(
            f"the run has {len(roles)} roles, so it is unclear which of them gets the arguments",
            hints=("describe the gang in a hop.yaml, then `hop run` the file",),
        )
    start = argument_start(roles[0]["command"], form.script)
    split = split_arguments(arguments, form)
    check_distinct(changed, split.params)
    removed = tuple(old_params)
    if not are_replaced:
        removed = tuple(name for name in placeholder_names(roles[0]["command"]) if name in old_params)
    new_params = {**split.params, **changed}
    command = [*roles[0]["command"][:start], *split.words]
    check_template(command, [*new_params, *(set(old_params) - set(removed))], what="arguments")
    named = placeholder_names(command)
    _check_flags([name for name in changed if name not in named], [command], form, "-p")
    return ArgumentChanges(
        new_params,
        tuple(name for name in removed if name not in new_params),
        [{**roles[0], "command": command}],
    )


def argument_start(command: Sequence[str], script: str) -> int:
    """Returns the position of the first argument of the script in a command."""
    if script in command:
        return list(command).index(script) + 1
    return next((i + 1 for i, word in enumerate(command) if word.endswith((".py", ".sh"))), 1)


def _check_names(names: Sequence[str], form: ParamFormat | None, notify: Notify, what: str) -> None:
    if not names:
        return
    if form is None:
        listed = ", ".join(names)
        notify(f"warning: nothing in the script takes {listed}: no parser and no `hop.params` was found")
        notify(
            "hint: choose the form with `--params-as args|hydra|env|json|file:PATH`, or write the place "
            f"into the command: `-- --{names[0]} {{{names[0]}}}`"
        )
        return
    if form.style is ParamStyle.ENV and form.options:
        _notify_unread_variables(names, form, notify)
    if form.style is ParamStyle.HYDRA and form.options:
        _notify_new_settings(names, form, notify)
    if form.style is ParamStyle.NOTEBOOK and form.options:
        _notify_undeclared(names, form, notify)
    unknown = [name for name in names if form.complete and form.find_option(name) is None]
    if unknown and form.style is ParamStyle.ARGS:
        raise _no_option(unknown[0], form, what)
    if form.style in _STYLE_WORDS:
        source = form.file or form.source
        notify(f"parameters are given as {_STYLE_WORDS[form.style]} ({source})")


def _check_flags(
    names: Iterable[str], commands: Iterable[Sequence[str]], form: ParamFormat | None, what: str
) -> None:
    """Raises SpecError for an option that the arguments of the script still contain, and that a further one
    would not replace: the value false of a flag adds no word."""
    if form is None or form.style is not ParamStyle.ARGS:
        return
    words = {
        word.partition("=")[0]
        for command in commands
        if form.script in command
        for word in own_words(command[argument_start(command, form.script) :], form)
    }
    for name in names:
        option = form.find_option(name)
        if option is None or (option.kind not in _ADDED_UP and option.place is not OptionPlace.FIRST):
            continue
        given = [word for word in (option.word, option.off, *option.aliases) if word and word in words]
        if given:
            raise SpecError(f"{what} {name}: the command holds `{given[0]}` as well", hints=("give it once",))


def _storable_form(form: ParamFormat) -> ParamFormat:
    """Returns the form without options that a run cannot store."""
    kept = {
        name: replace(option, aliases=option.aliases[:_MAX_ALIASES])
        for name, option in form.options.items()
        if name and f"{name}{option.word}".isprintable() and max(len(name), len(option.word)) <= 256
    }
    options = dict(list(kept.items())[:_MAX_OPTIONS])
    return replace(form, options=options, complete=form.complete and len(options) == len(form.options))


def _no_option(name: str, form: ParamFormat, what: str) -> SpecError:
    close = close_names(name, form.options, limit=1)
    options = ", ".join(list(form.options)[:20])
    return SpecError(
        f"{what} {name}: {form.script} has no such option ({form.source})",
        hints=(
            *([f"did you mean `{close[0]}`?"] if close else []),
            f"it has {options}" if options else "it has no options",
        ),
    )


def _notify_unread_variables(names: Sequence[str], form: ParamFormat, notify: Notify) -> None:
    unknown = [name for name in names if form.find_option(name) is None]
    if unknown:
        notify(f"warning: the script reads no variable for {', '.join(unknown)}")


def _notify_undeclared(names: Sequence[str], form: ParamFormat, notify: Notify) -> None:
    for name in names:
        if form.find_option(name) is None:
            close = close_names(name, form.options, limit=1)
            notify(f"warning: the cell `parameters` of {form.script} has no `{name}`")
            notify(
                f"hint: did you mean `{close[0]}`?" if close else f"hint: it has {', '.join(form.options)}"
            )


def _notify_new_settings(names: Sequence[str], form: ParamFormat, notify: Notify) -> None:
    unknown = [name for name in names if form.find_option(name) is None]
    if unknown:
        notify(f"warning: the settings of {form.script} have no {', '.join(unknown)}")
        close = close_names(unknown[0], form.options, limit=1)
        notify(f"hint: did you mean `{close[0]}`?" if close else f"hint: `-p +{unknown[0]}=…` adds a setting")


def _find_form(command: Sequence[str], folder: Path) -> ParamFormat | None:
    """Returns the form of the script that the command starts: a Python file, a module, or one that a shell
    script starts with its own arguments."""

    read = folder_reader(folder)
    launcher: ParamFormat | None = None
    notebook = notebook_of(command)
    if notebook:
        return analyse_notebook(notebook, read(notebook) or b"")
    for index, word in enumerate(command):
        if word == "-m" and index + 1 < len(command):
            module = command[index + 1]
            if module == OBJECTIVE_MODULE:  # a function takes its parameters by name
                return ParamFormat(source="the objective", script=module)
            for root in ("", "src/"):
                for end in ("/__main__.py", ".py"):
                    path = f"{root}{module.replace('.', '/')}{end}"
                    if (folder / path).is_file():
                        form = analyse_script(path, read)
                        return None if form is None else replace(form, script=module)
        if word.endswith(".py") and (folder / word).is_file():
            form = analyse_script(word, read)
            if form is not None and not form.remainder:
                return form
            launcher = launcher or form  # the next script may have the parser of the arguments
        if word.endswith(".sh") or (index == 0 and _is_shell_script(folder, word)):
            return _find_shell_form(word, read(word) or b"", folder)
    return launcher


def _within_shell(form: ParamFormat, script: str) -> ParamFormat:
    """Returns the form of a shell script that hands its arguments on. Its own may come first."""
    options = {name: replace(option, place=OptionPlace.ANY) for name, option in form.options.items()}
    return replace(form, script=script, options=options)


def _is_shell_script(folder: Path, program: str) -> bool:
    """Returns whether a program of the folder is a shell script, by its first line."""
    if Path(program).is_absolute():
        return False
    try:
        with (folder / program).open("rb") as file:
            first = file.readline(_MAX_FIRST_LINE)
    except (OSError, ValueError):
        return False
    words = re.split(rb"[/\s]+", first)
    return first.startswith(b"#!") and not _SHELLS.isdisjoint(words)


def _find_shell_form(script: str, source: bytes, folder: Path) -> ParamFormat | None:
    """Returns the form of a shell script: arguments where it hands them to a Python script, else variables
    that it uses."""
    text = source.decode(errors="replace")
    if '"$@"' in text or "$@" in text or "$*" in text:
        for word in text.split():
            if word.endswith(".py") and (folder / word).is_file():
                form = _find_form([word], folder)
                return None if form is None else _within_shell(form, script)
    variables = dict.fromkeys(re.findall(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", text))
    options: dict[str, ScriptOption] = {}
    for name in variables:
        options.setdefault(name, ScriptOption(name))
        options.setdefault(name.lower(), ScriptOption(name))
    if not options:
        return None
    return ParamFormat(ParamStyle.ENV, f"{SHELL_SOURCE}{script}", script, options)
