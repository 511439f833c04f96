"""Starts the import hooks of Hopyard, then the `sitecustomize` that this one hides.

Python imports this module at its start. An error of the hooks never reaches the script.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "hopyard_startup"  # apart from `hopyard`, which an old interpreter may be unable to import


def _start_hooks() -> None:
    package = type(sys)(_PACKAGE)
    package.__path__ = [os.path.dirname(_HERE)]
    sys.modules[_PACKAGE] = package
    from hopyard_startup.hook_table import activate_hooks  # type: ignore[import-not-found]

    activate_hooks()


def _run_hidden() -> None:
    """Runs the next `sitecustomize` on the path, as Python would."""
    # loaded already, unlike importlib
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


# child processes find this folder in PYTHONPATH again
sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != os.path.realpath(_HERE)]
_IS_KNOWN = sys.version_info >= (3, 7)
_IS_ON = os.environ.get("HOPYARD_REPLICA_DIR") and os.environ.get("HOPYARD_STARTUP_HOOKS") != "0"
if _IS_KNOWN and _IS_ON:
    try:
        _start_hooks()
    except Exception as error:
        sys.stderr.write(f"hopyard: the import hooks are off: {error}\n")
_run_hidden()
