"""`python -m hopyard.sdk.notebook train.ipynb`: the command of a run of a notebook.

papermill executes the notebook with the parameters of the run. The output of its cells is the output of this
process, and a copy with all outputs is written beside it: `train.executed.ipynb`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from hopyard.domain.notebook import Notebook, executed_path, read_notebook
from hopyard.errors import SpecError
from hopyard.private_files import write_atomically
from hopyard.sdk.params import convert_override, read_overrides
from hopyard.sdk.startup import param_reads, reports

_EXIT_NAMES = ("SystemExit", "PreemptedExit")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_START_TIMEOUT_S, _OUTPUT_TIMEOUT_S = 300, 60
_MAX_ERROR_LENGTH = 150  # leaves room for the cell in the reason of a failure
_KERNEL = "python3"


def main(path: str) -> int:
    """Executes the notebook. Returns the exit code of this process."""
    try:
        with open(path, "rb") as file:
            notebook = read_notebook(file.read(), path)
        given = read_overrides(os.environ.get("HOPYARD_PARAMS"))
        values = _variables(notebook, given)
        _check_packages(notebook)
    except (SpecError, OSError) as error:
        hints = error.hints if isinstance(error, SpecError) else ()
        sys.stderr.write("\n".join([f"error: {error}", *(f"hint: {hint}" for hint in hints)]) + "\n")
        return 1
    if os.environ.get("HOPYARD_REPLICA_DIR"):
        param_reads.record("notebook", values)
        reports.record_params("notebook", {**notebook.declared(), **values})
    with tempfile.TemporaryDirectory(prefix="kernel.") as folder:
        os.environ["JUPYTER_RUNTIME_DIR"] = folder
        return _execute(path, notebook, values, folder)


def _variables(notebook: Notebook, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the variables that the run sets, converted to the types of their defaults. Parameters that
    only `hop.params` reads are not among them."""
    declared = notebook.declared()
    values = {}
    for name, value in given.items():
        if name.isidentifier() and notebook.takes(name):
            default = declared.get(name, ...)
            values[name] = value if default is ... else convert_override(name, value, default)
    return values


def _check_packages(notebook: Notebook) -> None:
    from importlib.util import find_spec

    missing = [name for name in ("papermill", "ipykernel") if find_spec(name) is None]
    if not notebook.is_python:
        missing = [name for name in missing if name == "papermill"]
    if missing:
        raise SpecError(
            f"a notebook needs {' and '.join(missing)}, which {sys.executable} does not have",
            hints=(
                "pip install 'hopyard[notebooks]', or add papermill and ipykernel to the run's requirements",
            ),
        )


def _execute(path: str, notebook: Notebook, values: dict[str, Any], folder: str) -> int:
    # jsonschema would compile grammars of addresses for seconds, and no notebook is checked with them
    sys.modules.setdefault("rfc3987_syntax", cast("ModuleType", None))
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.engines import papermill_engines
    from papermill.exceptions import PapermillExecutionError

    if notebook.is_python:
        _select_interpreter(folder)
    # as a script: its folder is where it finds its modules
    own = os.path.dirname(os.path.abspath(path))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), own]))
    client = _Client()
    papermill_engines.register("hopyard", client.engine())
    client.forward_signals()
    try:
        papermill.execute_notebook(
            path,
            executed_path(path),
            values,
            engine_name="hopyard",
            kernel_name=_KERNEL if notebook.is_python else None,
            language="python" if notebook.is_python else None,
            progress_bar=False,
            start_timeout=_START_TIMEOUT_S,
            iopub_timeout=_OUTPUT_TIMEOUT_S,
        )
    except PapermillExecutionError as error:
        # papermill has added a cell with the parameters, which has a number as well
        added_at = (notebook.parameters_cell or 0) + (notebook.parameters_cell is not None)
        return _report_error(error, path, is_shifted=bool(values) and error.exec_count > added_at)
    except DeadKernelError:
        return client.report_death(path)
    return 0


def _select_interpreter(folder: str) -> None:
    """Lets the kernel `python3` be this interpreter, also where the user has registered another."""
    import json

    words = [sys.executable, "-u", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    options = ("--log-level=ERROR", "--HistoryManager.enabled=False")
    spec = {"argv": [*words, *options], "display_name": "Python 3", "language": "python"}
    write_atomically(Path(folder, "kernels", _KERNEL, "kernel.json"), json.dumps(spec).encode())
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("JUPYTER_PATH")]))


def _report_error(error: Any, path: str, *, is_shifted: bool) -> int:
    """Prints the traceback of a cell, then the exception with the cell's number. Returns the exit code.

    is_shifted: whether the number of its execution is larger by one.
    """
    cell = f"{path}, cell {error.exec_count - is_shifted}"
    if is_shifted:
        cell += f", In [{error.exec_count}]"
    if error.ename in _EXIT_NAMES:
        return _exit_code(error.ename, error.evalue, cell)
    from papermill.exceptions import strip_color

    lines = str(error.evalue).splitlines()
    first = lines[0][:_MAX_ERROR_LENGTH] if lines else ""
    sys.stderr.write(strip_color("\n".join(error.traceback)) + "\n\n")
    sys.stderr.write(f"Traceback (most recent call last):\n  {cell}\n")
    sys.stderr.write(f"{error.ename}: {first} ({cell})\n" if first else f"{error.ename}: ({cell})\n")
    return 128 + signal.SIGINT if error.ename == "KeyboardInterrupt" else 1


def _exit_code(name: str, text: str, cell: str) -> int:
    """Returns the code of `sys.exit` in a cell. Prints the cell: IPython warns on stderr, and its warning
    would be the reason of the failure."""
    if not re.fullmatch(r"-?[0-9]+", text):
        sys.stderr.write(f"{text}\n")
        return 1
    code = int(text) & 0xFF
    if code and name == "SystemExit":
        sys.stderr.write(f"SystemExit: {text} ({cell})\n")
    return code


class _Client:
    """The connection to the kernel: its output, its signals and its end."""

    def __init__(self) -> None:
        self._client: Any = None
        self._process: Any = None

    def engine(self) -> type[Any]:
        """Returns an engine of papermill that prints what a terminal of IPython would."""
        from papermill.clientwrap import PapermillNotebookClient
        from papermill.engines import NBClientEngine

        keep: Callable[[Any], None] = self._keep_process

        class OutputClient(PapermillNotebookClient):  # type: ignore[misc]
            def process_message(self, *arguments: Any, **options: Any) -> Any:
                keep(self)
                output = super().process_message(*arguments, **options)
                if output:
                    _print_output(output)
                return output

        class OutputEngine(NBClientEngine):  # type: ignore[misc]
            @classmethod
            def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
                client = OutputClient(
                    nb_man,
                    kernel_name=kernel_name,
                    startup_timeout=options["start_timeout"],
                    iopub_timeout=options["iopub_timeout"],
                    timeout=None,
                )
                keep(client)
                return client.execute()

        return OutputEngine

    def _keep_process(self, client: Any) -> None:
        self._client = client
        process = getattr(getattr(client.km, "provisioner", None), "process", None)
        if process is not None:
            self._process = process  # the provisioner drops it when the kernel has ended

    def forward_signals(self) -> None:
        """Sends signals on to the kernel: SIGINT to its group as Jupyter does, so that a cell gets
        KeyboardInterrupt."""
        for number in _FORWARDED:
            signal.signal(number, self._forward)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if self._client is not None:
            self._keep_process(self._client)
        process = self._process
        if process is None or process.poll() is not None:
            raise SystemExit(128 + number)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)

    def report_death(self, path: str) -> int:
        """Ends this process as the kernel has ended. Returns its exit code."""
        status = 1 if self._process is None else self._process.poll()
        if status is not None and status < 0:
            signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
            os.kill(os.getpid(), -status)
        sys.stderr.write(f"error: the kernel of {path} ended before its last cell\n")
        return status or 1


def _print_output(output: Any) -> None:
    if output.output_type == "stream":
        stream = sys.stdout if output.name == "stdout" else sys.stderr
        stream.write("".join(output.text))
        stream.flush()
    elif "text/plain" in output.get("data", ()):
        print("".join(output.data["text/plain"]), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
