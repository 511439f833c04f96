"""Loads user code by name: `file.py:Name`, `module:Name`, or `file.py` for a whole module. A file is executed
once."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from hopyard.errors import HopyardError, SpecError

if TYPE_CHECKING:  # a searcher of the user's is loaded where there may be no NumPy
    from hopyard.trainables.protocol import Trainable

_REQUIRED_METHODS = {
    "init": ("config",),
    "train": ("state", "partition", "config"),
    "evaluate": ("state", "partition", "config"),
}
_HINT = (
    "init(config), train(state, partition, config) and evaluate(state, partition, config) make a trainable"
)
_import_lock = threading.RLock()


def load(text: str, folder: Path) -> Trainable:
    """Returns the trainable that `text` names in the code at `folder`: an instance, a class (called without
    arguments), or a module with the functions. Raises SpecError that names the missing or wrong part, with
    the user's traceback for an error in user code."""
    found = load_attribute(text, folder)
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as bad:
            hint = "remove the arguments of `__init__`: parameters of a trial come with `config`"
            raise SpecError(
                f"creating an instance of `{text}` failed:\n{format_user_traceback(bad, folder)}",
                hints=(hint,),
            ) from bad
    for name, arguments in _REQUIRED_METHODS.items():
        _check(text, found, name, arguments)
    return cast("Trainable", found)


def load_attribute(text: str, folder: Path) -> Any:
    """Returns the object that `text` names: `file.py:Name`, `package.module:Name`, or a module without a
    name. Raises SpecError."""
    where, _, name = text.partition(":")
    if not where or (":" in text and not name):
        raise SpecError(
            f"`{text}` is not the name of a trainable",
            hints=("use the form train.py:Digits, package.module:Digits or train.py",),
        )
    with _import_lock:
        module = _module(where, folder)
    found: Any = module
    for part in name.split(".") if name else ():
        if not hasattr(found, part):
            there = [known for known in vars(found) if not known.startswith("_")]
            near = difflib.get_close_matches(part, there, n=1)
            hint = (
                f"did you mean `{near[0]}`?"
                if near
                else f"it has {', '.join(sorted(there)[:10]) or 'nothing'}"
            )
            raise SpecError(f"`{where}` has no `{name}`", hints=(hint,))
        found = getattr(found, part)
    return found


def _module(module_path: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # what lies beside it is imported as under `python file.py`
    if module_path.endswith(".py"):
        return _load_file(module_path, (folder / module_path).resolve(), folder)
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as lacking:
        if lacking.name is not None and (
            module_path == lacking.name or module_path.startswith(f"{lacking.name}.")
        ):
            hints = (
                (f"add the suffix of the file: `{module_path}.py`",)
                if (folder / f"{module_path}.py").exists()
                else (f"it is looked for in {folder.name}/",)
            )
            raise SpecError(f"there is no module `{module_path}`", hints=hints) from lacking
        raise _import_error(module_path, lacking, folder) from lacking
    except Exception as bad:
        raise _import_error(module_path, bad, folder) from bad


def _load_file(module_path: str, path: Path, folder: Path) -> ModuleType:
    """The module of a file, under the name by which other files of the user import it, unless that is
    somebody else's."""
    if not path.is_file():
        near = difflib.get_close_matches(module_path, [file.name for file in folder.glob("*.py")], n=1)
        hint = f"did you mean `{near[0]}`?" if near else "paths are relative to the folder of the code"
        raise SpecError(f"there is no file `{module_path}`", hints=(hint,))
    for module in list(sys.modules.values()):
        own = getattr(module, "__file__", None)
        if isinstance(own, str) and own.endswith(path.name) and Path(own).resolve() == path:
            return module
    inside = (
        path.relative_to(folder.resolve()).with_suffix("").as_posix().replace("/", ".")
        if path.is_relative_to(folder.resolve())
        else path.stem
    )
    name = (
        inside
        if inside.isidentifier() and inside not in sys.modules and inside not in sys.stdlib_module_names
        else f"_code_{path.stem}"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as bad:
        del sys.modules[name]
        raise _import_error(module_path, bad, folder) from bad
    return module


def _import_error(target: str, exception: Exception, folder: Path) -> SpecError:
    hints: tuple[str, ...] = exception.hints if isinstance(exception, HopyardError) else ()
    if isinstance(exception, ModuleNotFoundError) and exception.name:
        package = exception.name.partition(".")[0]
        hints = (
            (
                f"name `{package}` in the study's `requirements:`, or install it where the study runs: pip "
                f"install {package}"
            ),
            f"or is it a file of yours? It is looked for in the folder of the code, as `{package}.py`",
        )
    return SpecError(
        f"`{target}` cannot be imported:\n{format_user_traceback(exception, folder)}", hints=hints
    )


def format_user_traceback(exception: BaseException, code_dir: Path) -> str:
    """Returns the traceback as if the user had run the file in the folder of the code. It starts at the first
    line of user code, with paths relative to that folder. Errors of Hopyard itself end at the line of user
    code that called it."""
    frames = traceback.extract_tb(exception.__traceback__)
    code = code_dir.resolve()
    own = [Path(frame.filename).is_relative_to(code) for frame in frames]
    kept = frames[own.index(True) :] if True in own else []
    for frame in kept:
        if Path(frame.filename).is_relative_to(code):
            frame.filename = str(Path(frame.filename).relative_to(code))
    if isinstance(exception, HopyardError):
        while kept and not own[-1]:
            own.pop()
            kept.pop()
        return "".join([*traceback.format_list(kept), exception.message])
    lines = traceback.format_list(kept)
    if (
        isinstance(exception, SyntaxError)
        and exception.filename
        and Path(exception.filename).is_relative_to(code)
    ):
        exception.filename = str(Path(exception.filename).relative_to(code))
    return "".join([*lines, *traceback.format_exception_only(exception)]).rstrip()


def _check(text: str, value: Any, name: str, arguments: tuple[str, ...]) -> None:
    function = getattr(value, name, None)
    if not callable(function):
        what = "module" if isinstance(value, ModuleType) else f"`{type(value).__name__}`"
        raise SpecError(
            f"`{text}` is not a trainable: the {what.strip()} has no `{name}({', '.join(arguments)})`",
            hints=(_HINT,),
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, and says nothing of itself
    try:
        signature.bind(*arguments)
    except TypeError as bad:
        has = f"`{name}{signature}`"
        raise SpecError(
            f"`{text}`: {has} cannot be called as {name}({', '.join(arguments)}): {bad}", hints=(_HINT,)
        ) from bad
