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

if TYPE_CHECKING:  # a user's searcher is loaded in processes that may have no NumPy
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
    arguments), or a module with the functions.

    Raises SpecError that names the missing or wrong part. For an error in user code it contains the user's
    traceback.
    """
    trainable = load_attribute(text, folder)
    if inspect.isclass(trainable):
        try:
            trainable = trainable()
        except Exception as error:
            hint = "remove the arguments of `__init__`: parameters of a trial come with `config`"
            raise SpecError(
                f"creating an instance of `{text}` failed:\n{format_user_traceback(error, folder)}",
                hints=(hint,),
            ) from error
    for name, arguments in _REQUIRED_METHODS.items():
        _check(text, trainable, name, arguments)
    return cast("Trainable", trainable)


def load_attribute(text: str, folder: Path) -> Any:
    """Returns the object that `text` names: `file.py:Name`, `package.module:Name`, or a module without a
    name. Raises SpecError."""
    module_name, _, name = text.partition(":")
    if not module_name or (":" in text and not name):
        raise SpecError(
            f"`{text}` is not the name of a trainable",
            hints=("use the form train.py:Digits, package.module:Digits or train.py",),
        )
    with _import_lock:
        module = _module(module_name, folder)
    target: Any = module
    for part in name.split(".") if name else ():
        if not hasattr(target, part):
            public_names = [attribute for attribute in vars(target) if not attribute.startswith("_")]
            matches = difflib.get_close_matches(part, public_names, n=1)
            hint = (
                f"did you mean `{matches[0]}`?"
                if matches
                else f"it has {', '.join(sorted(public_names)[:10]) or 'nothing'}"
            )
            raise SpecError(f"`{module_name}` has no `{name}`", hints=(hint,))
        target = getattr(target, part)
    return target


def _module(module_path: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # files beside it can be imported as under `python file.py`
    if module_path.endswith(".py"):
        return _load_file(module_path, (folder / module_path).resolve(), folder)
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_path == error.name or module_path.startswith(f"{error.name}.")):
            hints = (
                (f"add the suffix of the file: `{module_path}.py`",)
                if (folder / f"{module_path}.py").exists()
                else (f"put it in {folder.name}/",)
            )
            raise SpecError(f"there is no module `{module_path}`", hints=hints) from error
        raise _import_error(module_path, error, folder) from error
    except Exception as error:
        raise _import_error(module_path, error, folder) from error


def _load_file(module_path: str, path: Path, folder: Path) -> ModuleType:
    """Loads a file as a module, under the name that the user's other files import, unless another module has
    that name."""
    if not path.is_file():
        matches = difflib.get_close_matches(module_path, [file.name for file in folder.glob("*.py")], n=1)
        hint = f"did you mean `{matches[0]}`?" if matches else "paths are relative to the folder of the code"
        raise SpecError(f"there is no file `{module_path}`", hints=(hint,))
    for module in list(sys.modules.values()):
        module_file = getattr(module, "__file__", None)
        if (
            isinstance(module_file, str)
            and module_file.endswith(path.name)
            and Path(module_file).resolve() == path
        ):
            return module
    dotted_name = (
        path.relative_to(folder.resolve()).with_suffix("").as_posix().replace("/", ".")
        if path.is_relative_to(folder.resolve())
        else path.stem
    )
    name = (
        dotted_name
        if dotted_name.isidentifier()
        and dotted_name not in sys.modules
        and dotted_name not in sys.stdlib_module_names
        else f"_code_{path.stem}"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_error(module_path, error, folder) from error
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
            f"if it is your own file, put it in the folder of the code as `{package}.py`",
        )
    return SpecError(
        f"`{target}` cannot be imported:\n{format_user_traceback(exception, folder)}", hints=hints
    )


def format_user_traceback(exception: BaseException, code_dir: Path) -> str:
    """Returns the traceback as if the user had run the file in the folder of the code.

    It starts at the first line of user code, with paths relative to that folder. Errors of Hopyard itself end
    at the line of user code that called it.
    """
    frames = traceback.extract_tb(exception.__traceback__)
    code_root = code_dir.resolve()
    is_user_code = [Path(frame.filename).is_relative_to(code_root) for frame in frames]
    shown_frames = frames[is_user_code.index(True) :] if True in is_user_code else []
    for frame in shown_frames:
        if Path(frame.filename).is_relative_to(code_root):
            frame.filename = str(Path(frame.filename).relative_to(code_root))
    if isinstance(exception, HopyardError):
        while shown_frames and not is_user_code[-1]:
            is_user_code.pop()
            shown_frames.pop()
        return "".join([*traceback.format_list(shown_frames), exception.message])
    lines = traceback.format_list(shown_frames)
    if (
        isinstance(exception, SyntaxError)
        and exception.filename
        and Path(exception.filename).is_relative_to(code_root)
    ):
        exception.filename = str(Path(exception.filename).relative_to(code_root))
    return "".join([*lines, *traceback.format_exception_only(exception)]).rstrip()


def _check(text: str, value: Any, name: str, arguments: tuple[str, ...]) -> None:
    function = getattr(value, name, None)
    if not callable(function):
        kind = "module" if isinstance(value, ModuleType) else f"`{type(value).__name__}`"
        raise SpecError(
            f"`{text}` is not a trainable: the {kind.strip()} has no `{name}({', '.join(arguments)})`",
            hints=(_HINT,),
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C without a signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        actual = f"`{name}{signature}`"
        raise SpecError(
            f"`{text}`: {actual} cannot be called as {name}({', '.join(arguments)}): {error}", hints=(_HINT,)
        ) from error
