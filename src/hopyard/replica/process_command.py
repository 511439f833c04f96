"""The command line and the environment of a process of the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.launchers.launch_command import launch_command
from hopyard.replica.prepare import PreparedRun
from hopyard.replica.process_env import process_env
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.resume_command import with_resume_arguments
from hopyard.replica.run_folder import RunFolder
from hopyard.replica.user_command import (
    param_variables,
    user_command,
    with_dataset_folders,
    write_param_file,
)


def process_command(
    spec: ReplicaSpec,
    folder: ReplicaDir,
    run_folder: RunFolder,
    prepared: PreparedRun,
    *,
    url: str,
    restored: bool,
    newest: Sequence[str] = (),
    visdom: str = "",
) -> tuple[list[str], dict[str, str]]:
    """Returns the words and the environment, with the resume arguments of the run if there is a checkpoint.
    Writes the file of its parameters.

    visdom: the address of the user's Visdom, "" for none.
    url: of the server. restored: it begins with a checkpoint of `hop.save` or `hop.loop`. newest: the
    checkpoints that earlier processes of this attempt have written, the newest first.
    """
    launch, resume_words = with_resume_arguments(
        spec.launch, run_folder, folder, restored=restored, newest=newest
    )
    launch = with_dataset_folders(launch, prepared.datasets)
    interpreter = prepared.interpreter
    env = process_env(
        replace(spec, launch=launch),
        folder,
        url=url,
        interpreter=interpreter.path,
        datasets=prepared.datasets,
        restored=restored,
        virtual_env=interpreter.virtual_env,
        visdom=visdom,
    )
    command = user_command(launch, prepared.datasets, spec.node.ports)
    env |= param_variables(launch, command)
    write_param_file(launch, folder.work)
    argv = [*command.words, *resume_words]
    if argv[0] in ("python", "python3"):
        argv[0] = interpreter.path
    words, variables = launch_command(spec, folder, argv, interpreter=interpreter.path, env=env)
    return list(words), {**env, **variables}
