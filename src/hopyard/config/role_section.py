"""The replicas of a run in a file: their commands, their resources, and the nodes they may use."""

from __future__ import annotations

from typing import Any

from hopyard.config import resource_requests, units
from hopyard.config.limits import MAX_EXTRAS
from hopyard.config.restart_section import read_restart
from hopyard.config.run_request import EvaluatorRequest, RoleRequest, gpu_fields
from hopyard.config.schemas.runs import RoleIn
from hopyard.config.section_values import read_field, read_flag, read_name, read_positive_field
from hopyard.config.yaml_section import YamlSection, as_section, format_given
from hopyard.domain.image_reference import check_image
from hopyard.domain.launcher import PARAMETER_SERVER_ROLE, Launcher
from hopyard.domain.notebook import NOTEBOOK_MODULE, NOTEBOOK_SUFFIX
from hopyard.domain.restart_policy import NO_RESTART, RestartPolicy
from hopyard.errors import SpecError

ROLE_KEYS = (
    "name",
    "replicas",
    "command",
    "resources",
    "pool",
    "labels",
    "topology",
    "essential",
    "private_folders",
    "restart",
    "launcher",
    "processes",
    "service",
    "image",
)
RESOURCE_KEYS = ("cpus", "memory", "gpus", "gpu_memory", "extras")


def read_roles(top: YamlSection) -> tuple[RoleRequest, ...]:
    """Returns the roles under `roles`. `restart`, `launcher` and `image` of the file apply to roles without
    their own. Raises SpecError."""
    restart, launcher, image = read_restart(top), read_field(top, "launcher", RoleIn), read_image(top)
    roles: list[RoleRequest] = []
    if isinstance(top.values.get("roles"), dict):
        hint = "write each role as a list entry with its name: `roles: [{name: worker, command: …}]`"
        raise top.error("roles", "a mapping is not a list", hint)
    for i, value in top.items("roles"):
        first = next((role for role in roles if role.launcher == Launcher.MPI), None)
        section = as_section(top.file, f"roles.{i}", value)
        command = () if first is None else first.command
        roles.append(read_role(section, restart=restart, launcher=launcher, mpi_command=command, image=image))
    if not roles:
        raise SpecError(
            f"{top.file}: roles: no role is given",
            hints=("a role needs at least a command: `roles: [{command: python train.py}]`",),
        )
    return tuple(roles)


def read_evaluator(top: YamlSection) -> EvaluatorRequest | None:
    """Returns the role under `evaluator`; None without one. Raises SpecError."""
    if not top.contains("evaluator"):
        return None
    section = top.section("evaluator")
    values = {key: value for key, value in section.values.items() if key != "newest"}
    role = read_role(YamlSection(section.file, section.path, {"name": "evaluator", **values}))
    return EvaluatorRequest(role, read_flag(section, "newest", default=False))


def read_role(
    section: YamlSection,
    *,
    restart: RestartPolicy = NO_RESTART,
    launcher: Launcher = Launcher.NONE,
    mpi_command: tuple[str, ...] = (),
    image: str = "",
) -> RoleRequest:
    """Returns one role. restart, launcher, image: the defaults. mpi_command: that of an earlier role with
    MPI; its `mpirun` starts the processes of this one as well. Raises SpecError."""
    section.check_keys(*ROLE_KEYS, "arguments")
    if section.values.get("launcher") is not None:
        launcher = read_field(section, "launcher", RoleIn)
    is_started = launcher is Launcher.MPI and section.values.get("command") is None and bool(mpi_command)
    name = read_name(section, "name") or "worker"
    is_server = launcher is Launcher.TENSORFLOW and name == PARAMETER_SERVER_ROLE
    resources = section.section("resources").check_keys(*RESOURCE_KEYS)
    cpu_milli = resources.amount("cpus", units.parse_cpus)
    minimum, replicas = _read_replicas(section)
    return RoleRequest(
        command=mpi_command if is_started else (*_read_command(section), *read_arguments(section)),
        name=name,
        replicas=replicas,
        min_replicas=minimum,
        cpu_milli=RoleRequest(()).cpu_milli if cpu_milli is None else cpu_milli,
        cpu_limited=cpu_milli is not None,
        memory_bytes=resources.amount("memory", units.parse_positive_memory) or 0,
        extras=_read_extras(resources.section("extras")),
        pools=_read_pools(section),
        labels=_read_labels(section.section("labels")),
        topology=section.amount("topology", resource_requests.parse_topology),
        essential=read_field(section, "essential", RoleIn),
        private_folders=read_field(section, "private_folders", RoleIn),
        restart=read_restart(section, default=restart),
        launcher=launcher.value,
        processes=read_positive_field(section, "processes", RoleIn),
        service=read_flag(section, "service", default=is_server),
        image=read_image(section) or image,
        **_read_gpus(resources),
    )


def read_image(section: YamlSection) -> str:
    """Returns the reference under `image`; "" without one. Raises SpecError."""
    text = section.text("image")
    return section.parsed("image", lambda: check_image(text, what="image")) if text else ""


def _read_gpus(resources: YamlSection) -> dict[str, Any]:
    gpus, memory = (
        resources.amount("gpus", resource_requests.parse_gpus),
        resources.amount("gpu_memory", units.parse_memory),
    )
    return resources.parsed("gpu_memory", lambda: gpu_fields(gpus, memory, what="gpu_memory", other="gpus"))


def _read_replicas(section: YamlSection) -> tuple[int, int]:
    """Returns the smallest (0: exactly the largest) and the largest number."""
    value = section.values.get("replicas")
    if isinstance(value, dict):
        range_ = section.section("replicas").check_keys("min", "max")
        if not range_.contains("max"):
            raise section.error("replicas", "`max` is missing", "for example `replicas: {min: 2, max: 8}`")
        maximum = read_field(range_, "max", RoleIn, "replicas")
        minimum = read_field(range_, "min", RoleIn, "replicas")
        return section.parsed(
            "replicas", lambda: resource_requests.check_range(minimum, maximum, what="replicas")
        )
    if isinstance(value, str):
        return section.parsed("replicas", lambda: resource_requests.parse_replicas(value, what="replicas"))
    return 0, read_field(section, "replicas", RoleIn)


def _read_extras(section: YamlSection) -> tuple[tuple[str, int], ...]:
    extras = {}
    for key in section.values:
        section.parsed(key, lambda k=key: resource_requests.check_extra(k, what="extras"))  # type: ignore[misc]
        extras[key] = section.integer(key, 0, low=1, high=MAX_EXTRAS)
    return tuple(sorted(extras.items()))


def _read_pools(section: YamlSection) -> tuple[str, ...]:
    value = section.values.get("pool")
    if not isinstance(value, list):
        text = section.text("pool")
        return (
            section.parsed("pool", lambda: resource_requests.parse_pools(text, what="pool")) if text else ()
        )
    texts = [(i, text) for i, text in section.items("pool")]
    if not texts:
        return ()
    for i, text in texts:
        if not isinstance(text, str):
            raise section.error(
                f"pool.{i}",
                f"{format_given(text)} is not the name of a pool",
                "pools are named: `pool: [fast, slow]`",
            )
    return section.parsed(
        "pool", lambda: resource_requests.parse_pools(",".join(text for _, text in texts), what="pool")
    )


def _read_labels(section: YamlSection) -> tuple[tuple[str, str], ...]:
    for key in section.values:
        section.parsed(key, lambda k=key: resource_requests.check_label(k, what="labels"))  # type: ignore[misc]
    return tuple(sorted((key, section.text(key)) for key in section.values))


def words_as_typed(values: list[Any]) -> list[Any]:
    """Returns the entries of a list; a scalar is the text that the file has: `1e-3`, `true`, `007`."""
    sources: dict[int, str] = getattr(values, "sources", {})
    return [sources.get(index, value) for index, value in enumerate(values)]


def read_arguments(section: YamlSection) -> list[str]:
    """Returns the words under `arguments`, as the file has them. Raises SpecError."""
    list(section.items("arguments"))  # refuses what is no list
    words = words_as_typed(section.values.get("arguments") or [])
    for index, word in enumerate(words):
        if isinstance(word, bool) or not isinstance(word, (str, int, float)):
            raise section.error(
                f"arguments.{index}", f"{format_given(word)} is not a word", f'write it in quotes: "{word}"'
            )
    if any("\0" in str(word) for word in words):
        raise section.error("arguments", "contains a zero byte")
    return [str(word) for word in words]


def _read_command(section: YamlSection) -> tuple[str, ...]:
    value = section.values.get("command")
    if isinstance(value, str):
        import shlex

        try:
            words = shlex.split(value)
        except ValueError as error:
            raise section.error(
                "command",
                f"{format_given(value)} cannot be split into words: {error}",
                "close the quotes, or give a list of words",
            ) from error
    elif isinstance(value, list) and all(
        isinstance(word, (str, int, float)) and not isinstance(word, bool) for word in words_as_typed(value)
    ):
        words = [str(word) for word in words_as_typed(value)]
    elif value is None:
        raise section.error(
            "command", "missing", "give the command of the replicas: `command: python train.py`"
        )
    else:
        raise section.error(
            "command",
            f"{format_given(value)} is neither a string nor a list of words",
            "for example `command: python train.py`",
        )
    if not words or not words[0]:
        raise section.error(
            "command", "empty", "give the command of the replicas: `command: python train.py`"
        )
    if "\0" in "".join(words):
        raise section.error("command", "contains a zero byte")
    if words[0].endswith(".py"):
        words = ["python", "-u", *words]
    elif words[0].endswith(NOTEBOOK_SUFFIX):
        words = ["python", "-u", "-m", NOTEBOOK_MODULE, *words]
    return tuple(words)
