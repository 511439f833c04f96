"""The hooks by the module that they wait for. A hook is imported only when its library is."""

from __future__ import annotations

import os

from .import_hooks import call_guarded, run_after_import

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType

# By the name of a library's module, the modules of this package; each has `install(module)`.
HOOKS: dict[str, tuple[str, ...]] = {
    "tensorboard.summary.writer.event_file_writer": ("event_writer",),
    "tensorboardX.event_file_writer": ("event_writer",),
    "wandb": ("wandb_run",),
    "wandb.sdk.wandb_run": ("wandb_run",),
    "wandb.sdk.wandb_summary": ("wandb_run",),
    "mlflow.tracking.client": ("mlflow_client",),
    "jax._src.clusters": ("jax_cluster",),
    "mpi4py": ("mpi_exit",),
    "visdom": ("visdom_client",),
    "transformers.trainer": ("trainer_logs",),
    "lightning.fabric.loggers.csv_logs": ("trainer_logs",),
    "lightning_fabric.loggers.csv_logs": ("trainer_logs",),
    **{
        f"{package}.trainer.connectors.logger_connector.logger_connector": ("trainer_logs",)
        for package in ("lightning.pytorch", "pytorch_lightning")
    },
    **{
        f"{package}.loggers.{module}": ("trainer_params",)
        for package in ("lightning.pytorch", "pytorch_lightning")
        for module in ("csv_logs", "tensorboard")
    },
}
# The same for hooks that observe parameters. They are registered only where the run has any.
PARAM_HOOKS: dict[str, tuple[str, ...]] = {
    "argparse": ("parser_hooks",),
    "click.core": ("parser_hooks",),
    "absl.flags._flagvalue": ("parser_hooks",),
    "fire.core": ("parser_hooks",),
    "hydra._internal.config_loader_impl": ("parser_hooks",),
    "omegaconf.omegaconf": ("parser_hooks",),
    "yaml.representer": ("argument_list",),
}


def activate_hooks() -> None:
    """Registers all hooks. It costs no import of a library. A command beside the script (`hop exec`) imports
    what the script imports, and reports nothing."""
    is_script = not os.environ.get("HOPYARD_CONSOLE")
    if is_script:
        _report_script()
    origin, copy = os.environ.get("HOPYARD_CODE_ORIGIN"), os.environ.get("HOPYARD_CODE_COPY")
    if origin and copy:
        from .packed_sources import use_packed_sources

        call_guarded("editable packages", use_packed_sources, origin, copy)
    if is_script:
        _register(HOOKS)
    if is_script and os.environ.get("HOPYARD_PARAMS_GIVEN"):
        _register(PARAM_HOOKS)
        call_guarded("params", _watch_params)


def _report_script() -> None:
    from .exit_texts import watch_exits
    from .package_versions import report_packages

    call_guarded("packages", report_packages)
    call_guarded("sys.exit", watch_exits)


def _register(table: dict[str, tuple[str, ...]]) -> None:
    for library, hooks in table.items():
        for hook in hooks:
            run_after_import(library, _Installer(hook))


def _watch_params() -> None:
    from . import param_reads, parser_hooks

    param_reads.record("python")
    call_guarded("sys.argv", param_reads.watch_held_arguments)
    parser_hooks.watch_environ()
    if os.environ.get("HOPYARD_PARAMS_FILE"):
        parser_hooks.watch_file(os.environ["HOPYARD_PARAMS_FILE"])


class _Installer:
    def __init__(self, hook: str) -> None:
        self._hook = hook

    def __call__(self, module: ModuleType) -> None:
        from importlib import import_module

        import_module(f"{__package__}.{self._hook}").install(module)
