"""Ports that a run names."""

from __future__ import annotations

import pytest

from hopyard.domain.run_port import (
    check_port_placeholders,
    check_ports,
    find_port,
    parse_port_name,
    parse_ports,
    port_placeholders,
    port_variables,
)
from hopyard.errors import SpecError


def test_options_give_numbers_and_names() -> None:
    assert parse_ports(["8888", "tensor-board=6006"]) == {"8888": 8888, "tensor-board": 6006}


@pytest.mark.parametrize(
    "texts",
    [
        ["0"],
        ["70000"],
        ["x"],
        ["=1"],
        ["Web=1"],
        ["80=81"],
        ["-1"],
        ["8888", "8888"],
        ["a=1", "b=1"],
        ["a=1", "a=2"],
    ],
)
def test_invalid_ports_are_refused(texts: list[str]) -> None:
    with pytest.raises(SpecError, match=r"^--port: "):
        parse_ports(texts)


def test_a_run_has_a_limited_number_of_ports() -> None:
    with pytest.raises(SpecError, match="17 ports, at most 16"):
        check_ports({str(number): number for number in range(1, 18)})


def test_variables_name_the_real_ports() -> None:
    ports = {"web-ui": 8888, "6006": 6006}
    assert port_variables(ports, {8888: 12000, 6006: 6006}) == {
        "PORT": "12000",
        "HOPYARD_PORT_8888": "12000",
        "HOPYARD_PORT_WEB_UI": "12000",
        "HOPYARD_PORT_6006": "6006",
    }
    assert port_variables({}, {}) == {}


def test_placeholders_name_the_real_ports() -> None:
    assert port_placeholders({"web": 8888}, {8888: 12000}) == {"port:8888": "12000", "port:web": "12000"}


def test_unknown_port_in_a_command_is_refused() -> None:
    check_port_placeholders([["serve", "--port={port:web}", "{port:8888}", "{lr}"]], {"web": 8888})
    check_port_placeholders([["python", "-c", "print(f'{port:04d}')"]], {})
    with pytest.raises(SpecError, match=r"roles\.1\.command: `\{port:9}` names no port") as refused:
        check_port_placeholders([["a"], ["b", "{port:9}"]], {"web": 8888})
    assert refused.value.hints == ("add it: `--port 9`",)


def test_port_is_found_by_number_and_name() -> None:
    assert [find_port({"web": 8888}, name) for name in ("web", "8888", "9", "x")] == [8888, 8888, None, None]


def test_name_of_a_port_is_checked() -> None:
    assert parse_port_name("web", what="PORT") == "web"
    for text in ("", "Web", "99999", "a b"):
        with pytest.raises(SpecError, match="PORT: "):
            parse_port_name(text, what="PORT")
