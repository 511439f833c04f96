from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.dataset_paths import (
    check_dataset_names,
    check_dataset_paths,
    dataset_variable,
    fill_dataset_paths,
    normalise_path,
)
from hopyard.domain.run import DatasetRef, RoleSpec, RunSpec
from hopyard.errors import SpecError


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/data/mnist", "/data/mnist"),
        ("//data//./mnist/", "/data/mnist"),
        ("../data", "../data"),
        ("./a/../data/", "data"),
        ("../../data/x", "../../data/x"),
        ("/dev/shm/x", "/dev/shm/x"),
        ("/usrdata", "/usrdata"),
    ],
)
def test_paths_are_normal(path: str, normal: str) -> None:
    assert normalise_path(path, subject="-d") == normal


@pytest.mark.parametrize(
    "path",
    ["/", ".", "..", "../..", "a/..", "../../../x", "../work", "../streams/x", "../../0", "../../run", "/usr",
     "/etc/x", "/data/../proc/1", "/dev/shm", "a\nb"],
)  # fmt: skip
def test_paths_that_would_hide_other_files_are_refused(path: str) -> None:
    with pytest.raises(SpecError):
        normalise_path(path, subject="-d")


def test_two_datasets_have_two_places() -> None:
    check_dataset_paths([DatasetRef("a", path="x"), DatasetRef("b", path="y"), DatasetRef("c")])
    for path in ("x", "x/y"):
        with pytest.raises(SpecError, match="is taken by the dataset `a`"):
            check_dataset_paths([DatasetRef("a", path="x"), DatasetRef("b", path=path)])


def test_commands_and_variables_name_datasets() -> None:
    text = "--data={dataset:mnist} ${dataset:a-b.c} {dataset:other} {dataset:>10} ${dataset:-x}"
    filled = fill_dataset_paths(text, {"mnist": "/m", "a-b.c": "/abc"})
    assert filled == "--data=/m /abc {dataset:other} {dataset:>10} ${dataset:-x}"
    escaped = "{{dataset:mnist}} is {dataset:mnist}, {{dataset:no}} {{lr}}"
    assert fill_dataset_paths(escaped, {"mnist": "/m"}) == "{dataset:mnist} is /m, {dataset:no} {{lr}}"
    assert dataset_variable("mnist-tv.2") == "HOPYARD_DATASET_MNIST_TV_2"
    spec = RunSpec("p", (RoleSpec(("python", "{dataset:mnist}")),), datasets=(DatasetRef("mnist"),))
    check_dataset_names(spec)
    check_dataset_names(RunSpec("p", (RoleSpec(("python", "{{dataset:no}}")),)))
    with pytest.raises(SpecError, match="is not a dataset of the run"):
        check_dataset_names(RunSpec("p", (RoleSpec(("python", "{dataset:mnits}")),)))
    with pytest.raises(SpecError, match=r"params\.data: `\{dataset:mnits\}` is not a dataset of the run"):
        check_dataset_names(replace(spec, params={"n": 1, "data": "{dataset:mnits}/train"}))
