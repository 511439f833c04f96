"""Lines of requirements that could not be installed are refused with their file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.client.environment_files import read_environment_file
from hopyard.errors import SpecError
from hopyard.replica.requirement_text import has_hashes, hash_lock

HASH = f"--hash=sha256:{64 * 'a'}"


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        (
            ["idna", 'six==1.16.0 --config-settings="x=y"'],
            "line 2: `--config-settings` is an option of pip that an environment of Hopyard cannot have",
            "remove it from the line",
        ),
        (
            ["six -C x=y"],
            "line 1: `--config-settings` is an option of pip that an environment of Hopyard cannot have",
            "remove it from the line",
        ),
        (
            ["--global-option=x", "six"],
            "line 1: `--global-option` is an option of pip that an environment of Hopyard cannot have",
            "remove it from the line",
        ),
        (["# first", "six==${SIXV}"], "line 2: the variable SIXV is not set", "set it: `-e SIXV=…`"),
        (
            ["six==1.16.0", "--require-hashes"],
            "line 1: `six==1.16.0` has no `--hash`, and `--require-hashes` in line 2 of r.txt makes hashes "
            "mandatory for all packages",
            "write the file with the hashes of all packages: `uv pip compile --generate-hashes`",
        ),
        (
            [f"idna==3.4 {HASH}", "six==1.16.0"],
            "line 2: `six==1.16.0` has no `--hash`, and a hash in line 1 of r.txt makes hashes mandatory for "
            "all packages",
            "write the file with the hashes of all packages: `uv pip compile --generate-hashes`",
        ),
    ],
)
def test_line_that_cannot_be_installed_is_named(
    tmp_path: Path, lines: list[str], message: str, hint: str
) -> None:
    file = tmp_path / "r.txt"
    file.write_text("\n".join(lines))
    with pytest.raises(SpecError) as error:
        read_environment_file(file, tmp_path, {"OTHER": "1"})
    assert str(error.value) == f"{file}: {message}"
    assert error.value.hints[0] == hint


def test_lines_that_can_be_installed(tmp_path: Path) -> None:
    file = tmp_path / "r.txt"
    (tmp_path / "c.txt").write_text("idna<4\n")
    address = f"lib @ https://host.example/lib-1.0-py3-none-any.whl#sha256={64 * 'b'}"
    for text in (
        f"--require-hashes\nsix==1.16.0 {HASH}\n{address}\n-c c.txt\n",
        "six==${V}\nlib @ https://${NODE}/lib.whl\nidna==${TOKEN}\n--pre\n",
    ):
        file.write_text(text)
        read = read_environment_file(file, tmp_path, {"V": "1.16.0"}, secrets={"TOKEN"}).requirements
        assert "six==1.16.0" in read
    assert "${NODE}" in read and "${TOKEN}" in read


def test_lock_keeps_the_option_that_requires_hashes() -> None:
    for text in (b"--require-hashes\nsix==1.16.0\n", b"six==1.16.0 --hash=sha256:ab\n"):
        lock = hash_lock(text)
        assert lock == text and has_hashes(lock)
    assert hash_lock(b"six==1.16.0\n") is None
