"""Environment variables that runs get from their node."""

from __future__ import annotations

from hopyard.domain.run_environment import replica_variables, run_variables, visible_variables

SHELL = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "TZ": "UTC",
    "PWD": "/tut",
    "OLDPWD": "/",
    "OMP_NUM_THREADS": "7",
    "HF_TOKEN": "hf",
    "WANDB_MODE": "offline",
    "AWS_SECRET_ACCESS_KEY": "x",
    "PYTHONPATH": "/src",
    "VIRTUAL_ENV": "/venv",
    "HOPYARD_TOKEN": "hop_x",
    "HOPYARD_HOME": "/h",
    "UV_DEFAULT_INDEX": "http://u:p@i/",
    "HTTP_PROXY": "http://proxy:1",
    "https_proxy": "http://me:secret@proxy:1",
    "http_proxy": "me:secret@proxy:1",
    "LC_TIME": "de_DE@euro",
    "no_proxy": "a:1,b",
    "NCCL_DEBUG": "INFO",
    "NCCL_ALGO": "Ring",
}


def test_run_gets_listed_and_admitted_variables() -> None:
    usual = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "TZ": "UTC",
        "HTTP_PROXY": "http://proxy:1",
        "LC_TIME": "de_DE@euro",
        "no_proxy": "a:1,b",
    }
    assert run_variables(SHELL, ()) == usual
    assert run_variables(SHELL, ("NCCL_*", "https_proxy", "GONE")) == usual | {
        "NCCL_DEBUG": "INFO",
        "NCCL_ALGO": "Ring",
        "https_proxy": SHELL["https_proxy"],
    }
    assert not {name for name in run_variables(SHELL, ("*", "HOPYARD_*")) if name.startswith("HOPYARD_")}


def test_replica_gets_build_variables_without_secrets() -> None:
    result = replica_variables(SHELL, ("NCCL_DEBUG",))
    extra = {"HOPYARD_HOME", "UV_DEFAULT_INDEX", "https_proxy", "http_proxy", "PYTHONPATH", "NCCL_DEBUG"}
    assert result == {name: SHELL[name] for name in {*run_variables(SHELL, ()), *extra}}


def test_admitted_variables_are_shown_by_name_only() -> None:
    got = run_variables(SHELL, ("NCCL_*",))
    result = visible_variables(got, ("NCCL_*",))
    assert result == {**got, "NCCL_DEBUG": None, "NCCL_ALGO": None} and list(result) == sorted(result)
