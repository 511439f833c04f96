"""Which variables of the machine runs get."""

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


def test_a_run_gets_the_list_and_what_an_administrator_adds() -> None:
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


def test_a_replica_gets_what_building_needs_and_nobodys_secrets() -> None:
    found = replica_variables(SHELL, ("NCCL_DEBUG",))
    extra = {"HOPYARD_HOME", "UV_DEFAULT_INDEX", "https_proxy", "http_proxy", "PYTHONPATH", "NCCL_DEBUG"}
    assert found == {name: SHELL[name] for name in {*run_variables(SHELL, ()), *extra}}


def test_values_that_an_administrator_let_in_are_told_by_name_only() -> None:
    got = run_variables(SHELL, ("NCCL_*",))
    told = visible_variables(got, ("NCCL_*",))
    assert told == {**got, "NCCL_DEBUG": None, "NCCL_ALGO": None} and list(told) == sorted(told)
