"""The JSON Schema of `hop.yaml`, by which editors complete and check the file.

`config.run_file` checks more than a schema can state, such as contradicting amounts. Every file that it reads
is valid by the schema.
"""

from __future__ import annotations

from typing import Any

from hopyard.config.key_values import VARIABLE_PATTERN
from hopyard.config.limits import MAX_EXTRAS, MAX_GPUS, MAX_PRIORITY, MAX_PROCESSES, MIN_PRIORITY
from hopyard.config.schemas.runs import MAX_DATASETS, MAX_ROLES
from hopyard.domain.gang import Closeness
from hopyard.domain.ids import NAME_PATTERN
from hopyard.domain.image_reference import IMAGE_PATTERN, MAX_IMAGE_REFERENCE
from hopyard.domain.launcher import Launcher
from hopyard.domain.notification import MAX_TARGETS, TARGET_PATTERN, NotifyOn
from hopyard.domain.preflight import Preflight
from hopyard.domain.restart_policy import MAX_RESTARTS, RestartMode
from hopyard.domain.run import MAX_REPLICAS
from hopyard.domain.run_network import RunNetwork
from hopyard.domain.run_port import MAX_PORT_NUMBER, MAX_PORTS, PORT_NAME_PATTERN

_ANY_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_])?"
_KEY = r"[A-Za-z_][A-Za-z0-9_.-]{0,127}"
_MEMORY = r"^\s*[0-9]{1,20}(?:\.[0-9]{1,20})?\s*(?:[KkMmGgTt][Ii]?[Bb]?|[Bb])?\s*$"
_GPUS = r"^\s*(?:[A-Za-z][A-Za-z0-9 ._|-]*(?::[0-9.]+)?|[0-9]{1,6}(?:\.[0-9]{1,3})?)\s*$"
_FLAG = r"^(?:[Yy][Ee][Ss]|[Nn][Oo]|[Oo][Nn]|[Oo][Ff][Ff])$"
_NUMBER = r"[0-9]{1,9}"
_TIME = (
    rf"^ *(?:{_NUMBER}(?:\.{_NUMBER})?|(?=[0-9])(?:{_NUMBER} *[dD] *)?(?:{_NUMBER} *[hH] *)?"
    rf"(?:{_NUMBER} *[mM] *)?(?:{_NUMBER}(?:\.{_NUMBER})? *[sS])?) *$"
)

Schema = dict[str, Any]


def _text(description: str, pattern: str = "", **more: Any) -> Schema:
    schema = {"description": description, "type": ["string", "null"], **more}
    return {**schema, "pattern": pattern} if pattern else schema


def _name(description: str) -> Schema:
    return _text(description, f"^(?:{NAME_PATTERN})?$")


def _flag(description: str) -> Schema:
    return {"description": description, "type": ["boolean", "string", "null"], "pattern": _FLAG}


def _amount(description: str, pattern: str, **more: Any) -> Schema:
    return {"description": description, "type": ["string", "number", "null"], "pattern": pattern, **more}


def _list(description: str, items: Schema, **more: Any) -> Schema:
    return {"description": description, "type": ["array", "null"], "items": items, **more}


def _mapping(description: str, keys: str, values: Schema) -> Schema:
    return {
        "description": description,
        "type": ["object", "null"],
        "propertyNames": {"pattern": keys},
        "additionalProperties": values,
    }


def _object(description: str, properties: dict[str, Schema], **more: Any) -> Schema:
    return {
        "description": description,
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


_WORD: Schema = {"type": ["string", "number", "boolean", "null"]}
_PATTERN: Schema = {"type": "string", "minLength": 1}
_SET_TEXT: Schema = {"type": ["string", "integer", "number", "boolean"]}
_TOPOLOGY = _text(
    "Closeness of the replicas, RULE:LEVEL: same:node, spread:rack, in slices same:rack/4.",
    rf"^\s*(?:{'|'.join(Closeness)}):[^\u0000=]+$",
    examples=["same:node", "spread:node"],
)
_REPLICAS: Schema = {
    "description": "Number of replicas, which start together: 4; elastic: 2-8, or {min: 2, max: 8}.",
    "type": ["integer", "string", "object", "null"],
    "minimum": 1,
    "maximum": MAX_REPLICAS,
    "pattern": r"^\s*[0-9]{1,9}(?:\s*-\s*[0-9]{1,9})?\s*$",
    "properties": {
        "min": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_REPLICAS},
        "max": {"type": "integer", "minimum": 1, "maximum": MAX_REPLICAS},
    },
    "required": ["max"],
    "additionalProperties": False,
}
_RESOURCES = _object(
    "Resources of each replica; also the limits of its use.",
    {
        "cpus": _amount("CPUs, also fractions.", r"^\s*[0-9]{1,9}(?:\.[0-9]{1,3})?\s*$", exclusiveMinimum=0),
        "memory": _amount("Memory: 4G.", _MEMORY, exclusiveMinimum=0),
        "gpus": _amount(
            "GPUs: 2, a share of one 0.5, of a model A100:8, of one of two A100|H100:2.",
            _GPUS,
            minimum=0,
            maximum=MAX_GPUS,
        ),
        "gpu_memory": _amount("Memory of one GPU, in place of a share: 20G.", _MEMORY, exclusiveMinimum=0),
        "extras": _mapping(
            "Other countable resources of nodes, by name.",
            f"^(?:{NAME_PATTERN})$",
            {"type": "integer", "minimum": 1, "maximum": MAX_EXTRAS},
        ),
    },
)
_COMMAND: Schema = {
    "description": "The command: a text, split as in a shell, or a list of words.",
    "type": ["string", "array"],
    "minLength": 1,
    "minItems": 1,
    "items": _WORD,
}
_POOL: Schema = {
    "description": "Node pools, one of which each replica uses.",
    "type": ["string", "array", "null"],
    "pattern": rf"^(?: *{_ANY_NAME} *(?:, *{_ANY_NAME} *)*)?$",
    "items": {"type": "string", "pattern": rf"^ *{_ANY_NAME} *(?:, *{_ANY_NAME} *)*$"},
}
_RESTART_PROPERTIES: dict[str, Schema] = {
    "policy": {
        "description": "never, on-failure, or always, which also follows a success.",
        "type": "string",
        "enum": list(RestartMode),
    },
    "limit": {
        "description": "Restarts of each replica in one attempt. By default 3.",
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MAX_RESTARTS,
    },
    "window": _amount("Only restarts of the last time count: 1h. By default all.", _TIME, exclusiveMinimum=0),
    "backoff": _amount(
        "Delay before the first restart, doubled for each further one. By default 1s.",
        _TIME,
        exclusiveMinimum=0,
    ),
}
_RESTART: Schema = {
    "description": "Whether a failed process starts again: never (the gang ends), on-failure, always.",
    "type": ["string", "object", "null"],
    "pattern": f"^(?:{'|'.join(RestartMode)})$",
    "properties": _RESTART_PROPERTIES,
    "required": ["policy"],
    "additionalProperties": False,
}
_LAUNCHER: Schema = {
    "description": "How the processes of the replicas are started.",
    "enum": [*(each.value for each in Launcher), None],
}
_IMAGE: Schema = {
    "description": "Image of the container in which each replica runs.",
    "type": ["string", "null"],
    "pattern": f"^(?:{IMAGE_PATTERN})?$",
    "maxLength": MAX_IMAGE_REFERENCE,
}
_ROLE = _object(
    "Replicas of one kind.",
    {
        "name": _name("Name of the role; its replicas are worker-0, worker-1, …"),
        "replicas": _REPLICAS,
        "command": _COMMAND,
        "arguments": _list("Words added to the command; `{lr}` is a parameter.", _WORD),
        "resources": _RESOURCES,
        "pool": _POOL,
        "labels": _mapping(
            "Labels that the nodes must have.", "^[^\\u0000=]{1,256}$", {"type": ["string", "null"]}
        ),
        "topology": _TOPOLOGY,
        "essential": _flag("false: the gang continues without these replicas."),
        "private_folders": _flag("true: a working folder for each replica, none shared."),
        "restart": _RESTART,
        "launcher": _LAUNCHER,
        "processes": {
            "description": "Processes that the launcher starts in each replica; by default one per GPU.",
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MAX_PROCESSES,
        },
        "service": _flag("true: ended after the other replicas, as parameter servers are."),
        "image": _IMAGE,
    },
    type="object",
)
# `mpirun` of the first replica starts the processes of all: other roles need no command
_IS_MPI: Schema = {"properties": {"launcher": {"const": Launcher.MPI}}, "required": ["launcher"]}
_EVENTS = f"(?:{'|'.join(NotifyOn)})"
_KEEP_PART = r"\s*((last|best|every)\s*=\s*[0-9]+|metric\s*=\s*[^,\s][^,]*?)\s*"

_PROPERTIES: dict[str, Schema] = {
    "name": _name("A label to find the run by."),
    "project": _name("The project of the run; by default the name of the folder."),
    "datasets": _list(
        "Datasets that the script reads: mnist, mnist:3, mnist=../data.",
        {
            "type": "string",
            "pattern": rf"^{_ANY_NAME}(?::(?:newest|0*[1-9][0-9]*))?(?:=[^\u0000]+|:/[^\u0000]*)?$",
        },
        maxItems=MAX_DATASETS,
    ),
    "params": _mapping(
        "Parameters of the script.", rf"^\+{{0,2}}{_KEY}$", {"type": ["string", "number", "boolean", "null"]}
    ),
    "params_as": _text(
        "How the script takes its parameters: args, hydra, env, json, file:PATH, sdk or none.",
        examples=["args", "hydra", "env", "json", "sdk", "none"],
    ),
    "env": _mapping("Environment variables.", f"^{VARIABLE_PATTERN}$", _SET_TEXT),
    "secrets": _list("Names of secrets.", {"type": "string", "pattern": f"^{VARIABLE_PATTERN}$"}),
    "tags": _mapping("Tags to find the run by.", f"^{_KEY}$", _SET_TEXT),
    "requirements": _text("File of the packages, relative to this file."),
    "python": _text("Version of Python, or the path of an interpreter.", r"^(?:[0-9]+(?:\.[0-9]+){0,2})?$|/"),
    "queue": _name("The queue."),
    "priority": {
        "description": "Larger priorities start first.",
        "type": ["integer", "null"],
        "minimum": MIN_PRIORITY,
        "maximum": MAX_PRIORITY,
    },
    "preemptible": _flag("false: never preempted."),
    "topology": _TOPOLOGY,
    "time": _amount("Time limit of each attempt: 2h, 90m, 3600.", _TIME, exclusiveMinimum=0),
    "idle": _amount("Ends after so long without use: 30m.", _TIME, minimum=60),
    "preflight": {
        "description": "Checks before the scripts start: none, of each node, also between the replicas, or "
        "also an all-reduce with every launcher.",
        "enum": [*(each.value for each in Preflight), None],
    },
    "max_output": _amount("Bytes of stdout and of stderr that are kept: 64M.", _MEMORY),
    "max_metrics": _amount("Bytes of the reports that are kept: 64M.", _MEMORY),
    "checkpoints": {
        "description": "Files of the working folder that the next attempt begins with.",
        "type": ["string", "array", "null"],
        "minLength": 1,
        "items": _PATTERN,
    },
    "outputs": _list("Files that are kept at the end; `!GLOB` excludes.", _PATTERN),
    "ports": {
        "description": "Ports at which the scripts serve: [8888], or {web: 8888}.",
        "type": ["array", "object", "null"],
        "maxItems": MAX_PORTS,
        "items": {
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": MAX_PORT_NUMBER,
            "pattern": "^(?:[a-z][a-z0-9-]{0,30}=)?[0-9]{1,5}$",
        },
        "maxProperties": MAX_PORTS,
        "propertyNames": {"pattern": f"^(?:{PORT_NAME_PATTERN})$"},
        "additionalProperties": {"type": "integer", "minimum": 1, "maximum": MAX_PORT_NUMBER},
    },
    "evaluator": {
        **_ROLE,
        "description": "The role of a run of its own that evaluates the checkpoints of this one.",
        "required": ["command"],
        "type": ["object", "null"],
        "properties": {
            **_ROLE["properties"],
            "newest": _flag("true: skips checkpoints when a newer one is complete."),
        },
    },
    "restart": {**_RESTART, "description": "Restart policy of the roles without their own."},
    "on_end": {
        "description": "Is notified of the end of the run and of alerts: an e-mail address, the address of "
        "a webhook, or a target of the server.",
        "type": ["string", "array", "null"],
        "pattern": f"^(?:{_EVENTS}(?:,{_EVENTS})*=)?(?:{TARGET_PATTERN})$",
        "maxItems": MAX_TARGETS,
        "items": {
            "type": ["string", "object"],
            "pattern": f"^(?:{_EVENTS}(?:,{_EVENTS})*=)?(?:{TARGET_PATTERN})$",
            "properties": {
                "to": {"type": "string", "pattern": f"^(?:{TARGET_PATTERN})$"},
                "when": {
                    "description": "Only these events; all without it.",
                    "type": ["string", "array", "null"],
                    "items": {"enum": [str(event) for event in NotifyOn]},
                },
            },
            "required": ["to"],
            "additionalProperties": False,
        },
    },
    "resume_args": {
        "description": "Arguments of attempts that begin with a checkpoint: --resume {checkpoint}.",
        "type": ["string", "array", "null"],
        "minLength": 1,
        "items": _PATTERN,
    },
    "keep": {
        "description": "Which checkpoints are kept: last=3,best=2,every=10,metric=max:val_acc.",
        "type": ["string", "object", "null"],
        "pattern": rf"^{_KEEP_PART}(,{_KEEP_PART})*$",
        "properties": {
            "last": {"type": "integer", "minimum": 1},
            "best": {"type": "integer", "minimum": 0},
            "every": {"type": "integer", "minimum": 1},
            "metric": {"type": "string"},
        },
        "additionalProperties": False,
    },
    "metric_lines": _list("Lines of the output with metrics: step {step}: loss {loss}.", _PATTERN),
    "launcher": _LAUNCHER,
    "image": {**_IMAGE, "description": "Image of the roles without their own."},
    "container": _flag("true: the requirements are installed into an image built from that of each role."),
    "network": {
        "description": "none: the replicas, which are in containers, reach only each other.",
        "enum": [*(each.value for each in RunNetwork), None],
    },
    "roles": {
        "description": "The kinds of replicas of the gang.",
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_ROLES,
        "items": _ROLE,
    },
}


def run_file_schema() -> Schema:
    """Returns the schema, in JSON Schema 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hop.yaml",
        "description": "A run of Hopyard, or a gang of several roles.",
        "type": "object",
        "properties": _PROPERTIES,
        "required": ["roles"],
        "additionalProperties": False,
        "if": _IS_MPI,
        "else": {"properties": {"roles": {"items": {"anyOf": [{"required": ["command"]}, _IS_MPI]}}}},
    }
