"""Hopyard: a deep-learning platform in one pip install.

    import hopyard as hop

The public names are in `__all__`. Each is loaded at its first use, so that the import itself costs nothing.
The names that a training script uses need Python 3.9, all others Python 3.11.
"""

import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 9):  # noqa: UP036  # an older interpreter imports this file, too
    raise ImportError(
        f"hopyard needs Python 3.9 or newer; {sys.executable} is Python {sys.version.split()[0]}\n"
        "hint: choose another interpreter, for example `hop run --python 3.12 …`"
    )

if TYPE_CHECKING:
    from hopyard.client.runs import Run as Run
    from hopyard.client.runs import get_run as get_run
    from hopyard.client.runs import runs as runs
    from hopyard.client.runs import submit as submit
    from hopyard.client.studies import Study as Study
    from hopyard.client.studies import search as search
    from hopyard.client.studies import study as study
    from hopyard.sdk.api import Audio as Audio
    from hopyard.sdk.api import Figure as Figure
    from hopyard.sdk.api import Histogram as Histogram
    from hopyard.sdk.api import Image as Image
    from hopyard.sdk.api import Table as Table
    from hopyard.sdk.api import Text as Text
    from hopyard.sdk.api import Video as Video
    from hopyard.sdk.api import alert as alert
    from hopyard.sdk.api import bind as bind
    from hopyard.sdk.api import checkpoints as checkpoints
    from hopyard.sdk.api import dataset_path as dataset_path
    from hopyard.sdk.api import load as load
    from hopyard.sdk.api import log as log
    from hopyard.sdk.api import loop as loop
    from hopyard.sdk.api import params as params
    from hopyard.sdk.api import peers as peers
    from hopyard.sdk.api import run as run
    from hopyard.sdk.api import save as save
    from hopyard.sdk.api import summary as summary
    from hopyard.trainables.keras_trainable import KerasTrainable as KerasTrainable
    from hopyard.trainables.metric_aggregation import row_mean as row_mean
    from hopyard.trainables.torch_trainable import TorchTrainable as TorchTrainable

__version__ = "0.1.0"
__all__ = [
    "Audio",
    "Figure",
    "Histogram",
    "Image",
    "KerasTrainable",
    "Run",
    "Study",
    "Table",
    "Text",
    "TorchTrainable",
    "Video",
    "alert",
    "bind",
    "checkpoints",
    "dataset_path",
    "get_run",
    "load",
    "log",
    "loop",
    "params",
    "peers",
    "row_mean",
    "run",
    "runs",
    "save",
    "search",
    "study",
    "submit",
    "summary",
]
_MODULES = {  # by name, the module of each name that is not in `hopyard.sdk.api`
    "Run": "hopyard.client.runs",
    "get_run": "hopyard.client.runs",
    "runs": "hopyard.client.runs",
    "submit": "hopyard.client.runs",
    "Study": "hopyard.client.studies",
    "search": "hopyard.client.studies",
    "study": "hopyard.client.studies",
    "KerasTrainable": "hopyard.trainables.keras_trainable",
    "TorchTrainable": "hopyard.trainables.torch_trainable",
    "row_mean": "hopyard.trainables.metric_aggregation",
}


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module `hopyard` has no attribute `{name}`")
        if name in _MODULES and sys.version_info < (3, 11):
            version = sys.version.split()[0]
            raise ImportError(
                f"hopyard.{name} needs Python 3.11 or newer; {sys.executable} is Python {version}"
            )
        from importlib import import_module

        value: object = getattr(import_module(_MODULES.get(name, "hopyard.sdk.api")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
