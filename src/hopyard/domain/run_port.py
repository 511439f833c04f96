"""The ports that a run names: its scripts serve there, and the server passes connections through to them.

A node gives each replica a free port of its own, because two runs may name the same one. It is the named port
where that is free. The scripts learn it from variables, or from `{port:8888}` in their command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hopyard.domain.command_template import PORT_PREFIX, plain_names
from hopyard.domain.text import escape
from hopyard.errors import SpecError

FIRST_PORT_VARIABLE = "PORT"  # a value of the user counts more
NOTEBOOK_PORT = ("lab", 8888)  # name and number of the port of `hop notebook`
TENSORBOARD_PORT = ("tensorboard", 6006)  # of `hop tensorboard`
VISDOM_PORT = ("visdom", 8097)  # of `hop visdom`
VISDOM_NAME = "visdom"  # the project and the label of the run of `hop visdom`
VISDOM_PATH = "/-/"  # precedes the secret in the address of Visdom that a run gets
VISDOM_VARIABLE = "HOPYARD_VISDOM"  # that address
SOCKET_VARIABLE = "HOPYARD_SOCKET_"  # the beginning of the names of variables with paths of sockets
SOCKET_FOLDER = "ports"  # of a replica's folder
MAX_PORTS = 16  # of one run
MAX_PORT_NUMBER = 65_535
PORT_NAME_PATTERN = r"[a-z][a-z0-9-]{0,30}|[1-9][0-9]{0,4}"
_NAME = re.compile(PORT_NAME_PATTERN)


def parse_port(text: str, *, what: str = "--port") -> tuple[str, int]:
    """Parses `8888` or `tensorboard=6006` into the name and the number. The name of a port without one is its
    number. Raises SpecError."""
    name, equals, number = text.rpartition("=")
    if not number.isascii() or not number.isdecimal() or len(number) > 5:
        raise SpecError(
            f"{what}: `{escape(text)}` is not a port",
            hints=("for example `--port 8888` or `--port lab=8888`",),
        )
    checked = (name if equals else str(int(number)), int(number))
    check_ports(dict([checked]), path=what)
    return checked


def parse_port_name(text: str, *, what: str) -> str:
    """Returns the number or name of a port of a run. Raises SpecError."""
    if _NAME.fullmatch(text) is None or (text.isdecimal() and int(text) > MAX_PORT_NUMBER):
        raise SpecError(
            f"{what}: `{escape(text)}` is not the number or name of a port",
            hints=("give one that `hop info` lists, such as 8888",),
        )
    return text


def parse_ports(texts: Sequence[str], *, what: str = "--port") -> dict[str, int]:
    """Returns the ports of several options by name. Raises SpecError."""
    ports: dict[str, int] = {}
    for text in texts:
        name, number = parse_port(text, what=what)
        if name in ports:
            raise SpecError(f"{what}: the name `{name}` is given twice", hints=("name each port once",))
        ports[name] = number
    check_ports(ports, path=what)
    return ports


def check_ports(ports: Mapping[str, int], *, path: str = "ports") -> None:
    """Raises SpecError naming the path of a port that cannot be one."""
    if len(ports) > MAX_PORTS:
        raise SpecError(f"{path}: {len(ports)} ports, at most {MAX_PORTS} are allowed")
    for name, number in ports.items():
        if not 1 <= number <= MAX_PORT_NUMBER:
            raise SpecError(f"{path}: {number} is not a port", hints=(f"allowed: 1 to {MAX_PORT_NUMBER}",))
        if _NAME.fullmatch(name) is None or (name.isdecimal() and name != str(number)):
            raise SpecError(
                f"{path}: `{escape(name)}` is not the name of a port",
                hints=("use a letter, then letters a-z, digits and hyphens: `tensorboard`",),
            )
    numbers = list(ports.values())
    for number in numbers:
        if numbers.count(number) > 1:
            raise SpecError(f"{path}: the port {number} is given twice", hints=("name each port once",))


def check_port_placeholders(commands: Sequence[Sequence[str]], ports: Mapping[str, int]) -> None:
    """Raises SpecError for `{port:NAME}` in the command of a role when the run has no such port. In a text of
    a program, such as `f"{port:04d}"`, it has another meaning."""
    for index, command in enumerate(commands):
        for word in plain_names(command):
            name = word.removeprefix(PORT_PREFIX)
            if name != word and find_port(ports, name) is None:
                raise SpecError(
                    f"roles.{index}.command: `{{{word}}}` names no port of the run",
                    hints=(
                        f"add it: `--port {name}`" if name.isdecimal() else f"add it: `--port {name}=8888`",
                    ),
                )


def find_port(ports: Mapping[str, int], name: str) -> int | None:
    """Returns the number of the port with this name or number; None without one."""
    if name in ports:
        return ports[name]
    return int(name) if name.isdecimal() and int(name) in ports.values() else None


def port_variables(ports: Mapping[str, int], real: Mapping[int, int]) -> dict[str, str]:
    """Returns the variables with the ports at which a replica serves: by number, by name, and `PORT` for the
    first. real: the port of this replica for each named number."""
    variables: dict[str, str] = {}
    for name, number in ports.items():
        port = str(real.get(number, number))
        variables.setdefault(FIRST_PORT_VARIABLE, port)
        variables[f"HOPYARD_PORT_{number}"] = port
        variables[f"HOPYARD_PORT_{name.upper().replace('-', '_')}"] = port
    return variables


def socket_path(folder: str, number: int) -> str:
    """Returns the path of the Unix socket at which a replica may serve a port for the server only. folder: of
    the replica."""
    return f"{folder}/{SOCKET_FOLDER}/{number}.sock"


def socket_variables(ports: Mapping[str, int], folder: str) -> dict[str, str]:
    """Returns the variables with the paths of these sockets, by number and by name."""
    variables: dict[str, str] = {}
    for name, number in ports.items():
        for key in (str(number), name.upper().replace("-", "_")):
            variables[f"{SOCKET_VARIABLE}{key}"] = socket_path(folder, number)
    return variables


def port_placeholders(ports: Mapping[str, int], real: Mapping[int, int]) -> dict[str, str]:
    """Returns the values of `{port:8888}` and `{port:NAME}` in a command."""
    names = {**{str(number): number for number in ports.values()}, **ports}
    return {f"{PORT_PREFIX}{name}": str(real.get(number, number)) for name, number in names.items()}
