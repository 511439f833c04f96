"""The form of a script's parameters by its syntax tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.param_format import OptionPlace, ParamFormat, added_words
from hopyard.domain.script_analysis.analysis import analyse_script

ARGPARSE = """
from argparse import ArgumentParser, BooleanOptionalAction
p = ArgumentParser()
p.add_argument("data")
p.add_argument("--batch-size", "-b", type=int)
p.add_argument("--wd", "--weight-decay", dest="decay", type=float)
p.add_argument("--no-cuda", dest="cuda", action="store_false")
p.add_argument("--amp", action=BooleanOptionalAction)
p.add_argument("--layers", nargs="+")
"""
TYRO = """
import dataclasses, tyro
@dataclasses.dataclass
class Optim:
    lr_rate: float = 0.1
@dataclasses.dataclass
class Args:
    optim: Optim
    use_amp: bool = False
    sizes: tuple[int, ...] = (1,)
args = tyro.cli(Args)
"""
PYRALLIS = """
from dataclasses import dataclass, field
import pyrallis
@dataclass
class Optim:
    lr_rate: float = 0.1
@dataclass
class Config:
    use_amp: bool = False
    optim: Optim = field(default_factory=Optim)
@pyrallis.wrap()
def main(config: Config): ...
"""
HF = """
from dataclasses import dataclass
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class ModelArguments:
    model_name: str = "x"
    use_fast: bool = True
parser = HfArgumentParser((ModelArguments, TrainingArguments))
"""
SCRIPTS: dict[str, tuple[str, str, dict[str, str | int | bool], str]] = {
    "argparse": (
        ARGPARSE,
        "argparse in s.py",
        {"batch_size": 8, "decay": 1, "cuda": False, "amp": True, "layers": "1 2", "data": "d"},
        "--layers 1 2 --batch-size 8 --wd 1 --no-cuda --amp d",
    ),
    "tyro": (
        TYRO,
        "tyro in s.py",
        {"optim.lr_rate": 1, "use_amp": False, "sizes": "1,2"},
        "--optim.lr-rate 1 --no-use-amp --sizes 1 2",
    ),
    "pyrallis": (
        PYRALLIS,
        "pyrallis in s.py",
        {"optim.lr_rate": 1, "use_amp": False},
        "--optim.lr_rate 1 --use_amp False",
    ),
    "pyrallis parse": (
        PYRALLIS.replace("@pyrallis.wrap()", "pyrallis.parse(config_class=Config)"),
        "pyrallis in s.py",
        {"optim.lr_rate": 1},
        "--optim.lr_rate 1",
    ),
    "hf": (
        HF,
        "HfArgumentParser in s.py",
        {"model_name": "y", "use_fast": False, "learning_rate": 1},
        "--model_name y --use_fast False --learning_rate 1",
    ),
    "hf subclass": (
        "from transformers import HfArgumentParser, Seq2SeqTrainingArguments\n"
        "class Own(Seq2SeqTrainingArguments): ...\nHfArgumentParser(Own)\n",
        "HfArgumentParser in s.py",
        {"num-train-epochs": 2, "report_to": "none"},
        "--num_train_epochs 2 --report_to none",
    ),
    "click": (
        "import click\n@click.command()\n@click.option('--lr-rate', '-l', type=float)\n"
        "@click.option('--amp/--no-amp')\n@click.argument('data')\ndef main(**k): ...\n",
        "click in s.py",
        {"lr_rate": 1, "amp": False, "data": "d"},
        "--lr-rate 1 --no-amp d",
    ),
    "click lists": (
        "import click\n@click.command()\n@click.option('--size', 'sizes', multiple=True)\n"
        "@click.option('--shape', nargs=2)\ndef main(**k): ...\n",
        "click in s.py",
        {"size": "1,2", "shape": "3,4"},
        "--size 1 --size 2 --shape 3 4",
    ),
    "typer options": (
        "import typer\nfrom typing import Annotated\n"
        "def main(ctx: typer.Context, data: str = typer.Argument('d'), *, on: Annotated[bool, "
        "typer.Option('--on')] = False, lr: float = typer.Option(0.1, '-l', '--rate'), sizes: list[int] = []"
        "): ...\ntyper.run(main)\n",
        "Typer in s.py",
        {"data": "x", "on": True, "rate": 1, "sizes": "1 2"},
        "--on --rate 1 --sizes 1 --sizes 2 x",
    ),
    "typer": (
        "import typer\ndef main(data: str, lr_rate: float = 0.1, amp: bool = False): ...\ntyper.run(main)\n",
        "Typer in s.py",
        {"data": "d", "lr_rate": 1, "amp": True},
        "--lr-rate 1 --amp d",
    ),
    "fire": ("import fire\ndef main(lr=0.1): ...\nfire.Fire(main)\n", "Fire in s.py", {"lr": 1}, "--lr=1"),
    "absl": (
        "from absl import flags\nflags.DEFINE_float('lr', 0.1, '')\nflags.DEFINE_bool('amp', True, '')\n",
        "absl flags in s.py",
        {"lr": 1, "amp": False},
        "--lr=1 --noamp",
    ),
    "hydra": (
        "import hydra\n@hydra.main(config_path='conf')\ndef main(cfg): ...\n",
        "Hydra in s.py",
        {"a.b": 1},
        "a.b=1",
    ),
    "cli": (
        "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n",
        "LightningCLI in s.py",
        {"model.lr": 1},
        "--model.lr=1",
    ),
    "omegaconf": (
        "from omegaconf import OmegaConf\nc = OmegaConf.from_cli()\n",
        "OmegaConf in s.py",
        {"a.b": 1},
        "a.b=1",
    ),
    "configurator": (
        "lr = 0.1\nexec(open('configurator.py').read())\n",
        "exec of a configurator in s.py",
        {"lr": 1},
        "--lr=1",
    ),
}


def analyse(source: str, **modules: str) -> ParamFormat | None:
    files = {"s.py": source, **{f"{name}.py": text for name, text in modules.items()}}
    return analyse_script("s.py", lambda path: files[path].encode() if path in files else None)


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_library_is_found_with_its_spelling(name: str) -> None:
    source, place, params, words = SCRIPTS[name]
    form = analyse(source)
    assert form is not None and form.source == place
    assert " ".join(added_words(params, form)) == words


def test_parser_in_an_imported_module_is_found() -> None:
    module = "import argparse\ndef parse():\n    p = argparse.ArgumentParser()\n    p.add_argument('--lr')\n"
    form = analyse("from options import parse\nparse()\n", options=module)
    assert form is not None and form.source == "argparse in options.py" and form.complete


def test_options_that_the_tree_does_not_show_leave_the_list_open() -> None:
    loop = "import argparse\np = argparse.ArgumentParser()\nfor n in names:\n    p.add_argument('--' + n)\n"
    handed = "import argparse, lib\nparser = argparse.ArgumentParser()\nlib.add_options(parser)\n"
    for source in (loop, handed):
        form = analyse(source)
        assert form is not None and not form.complete


def test_rest_that_the_script_drops_is_no_open_list() -> None:
    head = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n"
    for line, complete in (
        ("a, _ = p.parse_known_args()", True),
        ("a = p.parse_known_args()[0]", True),
        ("a, rest = p.parse_known_args()\nprint(rest)", False),
        ("main(*p.parse_known_args())", False),
    ):
        form = analyse(head + line)
        assert form is not None and form.complete is complete, line


def test_settings_of_hydra_are_read_from_its_files() -> None:
    files = {
        "src/s.py": "import hydra\n@hydra.main('../conf', 'main')\ndef main(cfg): ...\n",
        "conf/main.yaml": "# settings\ndefaults:\n  - base\n  - override /optim: adam\n"
        "  - hydra/launcher: x\n  - data@train: mnist\n\n"
        "trainer:\n  max_epochs: 3  # many\n  list: [1]\nhydra:\n  run: {}\n",
        "conf/base.yaml": "seed: 1e-3\n",
        "conf/optim/adam.yaml": "lr: 0.1\nname: adam\n",
        "conf/data/mnist.yaml": "# @package _global_\nfolder: .\n",
    }
    form = analyse_script("src/s.py", lambda path: files[path].encode() if path in files else None)
    assert form is not None and form.source == "Hydra in src/s.py" and not form.complete
    assert sorted(form.options) == [
        "data@train",
        "folder",
        "optim",
        "optim.lr",
        "optim.name",
        "seed",
        "trainer",
        "trainer.list",
        "trainer.max_epochs",
    ]
    assert form.options["trainer.max_epochs"].numeric and not form.options["optim.name"].numeric


@pytest.mark.parametrize(
    ("body", "calls", "place"),
    [
        ("p.add_argument('--lr')", "add(p)", OptionPlace.FIRST),
        ("p.add_argument('--lr')", "add(t); add(p=commands.add_parser('eval'))", OptionPlace.LAST),
        ("g = p.add_argument_group(); g.add_argument('--lr')", "add(t)", OptionPlace.LAST),
        ("p.add_argument('--lr')", "add(p); add(t)", OptionPlace.ANY),
        ("p.add_argument('--lr')", "", OptionPlace.ANY),
    ],
)
def test_options_of_a_function_have_the_place_of_its_parser(
    body: str, calls: str, place: OptionPlace
) -> None:
    """A parameter of a function is another variable than that of the script with the same name."""
    source = (
        f"import argparse\ndef add(p):\n    {body}\np = argparse.ArgumentParser()\n"
        f"p.add_argument('--seed')\ncommands = p.add_subparsers(dest='cmd')\n"
        f"t = commands.add_parser('train')\n{calls}\n"
    )
    form = analyse_script("s.py", lambda path: source.encode() if path == "s.py" else None)
    assert form is not None
    places = {name: option.place for name, option in form.options.items()}
    assert places == {"seed": OptionPlace.FIRST, "cmd": OptionPlace.ANY, "lr": place}


@pytest.mark.parametrize(
    "source",
    [
        "import typer\ndef main(a: str, n: int, b: str = typer.Argument('x')): ...\ntyper.run(main)\n",
        "import click\n@click.argument('a')\n@click.argument('n', type=int)\n"
        "@click.argument('b', default='x')\ndef main(a, n, b): ...\n",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('a')\n"
        "p.add_argument('n', type=int)\np.add_argument('b', type=str)\n",
    ],
)
def test_positional_texts_are_known(source: str) -> None:
    form = analyse_script("s.py", lambda path: source.encode() if path == "s.py" else None)
    assert form is not None
    known = {name: (option.kind, option.text, option.numeric) for name, option in form.options.items()}
    text, number = ("positional", True, False), ("positional", False, True)
    assert known == {"a": text, "n": number, "b": text}


def test_script_that_composes_its_settings_takes_overrides() -> None:
    head = "import sys\nfrom hydra import compose, initialize\nwith initialize(config_path='conf'):\n    "
    files = {"conf/main.yaml": b"lr: 1\n"}
    for line, takes in (
        ("compose(config_name='main', overrides=sys.argv[1:])", True),
        ("words = sys.argv[1:]; cfg = compose('main', overrides=['a=1', *words])", True),
        ("compose(config_name='main', overrides=['lr=2'])", False),
    ):
        source = (head + line).encode()
        form = analyse_script("a.py", lambda path, source=source: {**files, "a.py": source}.get(path))
        assert (form is not None and form.style == "hydra" and list(form.options) == ["lr"]) is takes, line


HYDRA_FILES = {
    "main.yaml": (
        "defaults:\n  - base\n  - server: web\n  - data@train: mnist\n  - data@eval.set: mnist\n"
        "  - optional local: absent\n  - _self_\n  - override /server/db: lite\n\nseed: 1\n"
    ),
    "base.yaml": "lr: 0.1\n",
    "server/web.yaml": "defaults:\n  - db: full\n  - /data@copy: mnist\n  - common\nport: 80\n",
    "server/common.yaml": "host: a\n",
    "server/db/full.yaml": "user: a\n",
    "server/db/lite.yaml": "file: b\n",
    "data/mnist.yaml": "folder: x\nsize:\n  train: 1\n",
}


def test_settings_of_groups_are_those_that_hydra_composes(tmp_path: Path) -> None:
    hydra = pytest.importorskip("hydra")
    for path, text in HYDRA_FILES.items():
        file = tmp_path / "conf" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "s.py").write_text("import hydra\n@hydra.main('conf', 'main')\ndef main(c): ...\n")
    form = analyse_script("s.py", lambda p: (tmp_path / p).read_bytes() if (tmp_path / p).is_file() else None)
    assert form is not None

    def keys(values: Any, prefix: str = "") -> set[str]:
        inner = {f"{prefix}{key}": value for key, value in values.items()}
        deep = [keys(value, f"{key}.") for key, value in inner.items() if hasattr(value, "items")]
        return {key for key, value in inner.items() if not hasattr(value, "items")}.union(*deep)

    with hydra.initialize_config_dir(str(tmp_path / "conf"), version_base=None):
        composed = keys(hydra.compose("main"))
        groups = {"server", "server/db", "data@train", "data@eval.set", "data@server.copy", "local"}
        assert {*composed, *groups} <= set(form.options)
        for group in sorted(groups - {"local"}):  # the names are those of Hydra's command line
            choice = {"server": "web", "server/db": "full"}.get(group, "mnist")
            hydra.compose("main", overrides=[f"{group}={choice}"])


def test_options_that_become_parameters_of_the_sdk_remain_options() -> None:
    parser = """
import argparse
import hopyard as hop
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
"""
    form = analyse(parser + "p = hop.params(lr=args.lr)\n")
    assert form is not None and form.style == "args" and set(form.options) == {"lr", "epochs"}
    for call in ("lr=0.1", "lr=args.lr, width=8", "lr=args.epochs", "**vars(args)", "width=args.width"):
        form = analyse(parser + f"p = hop.params({call})\n")
        assert form is not None and form.style == "sdk"


def test_variables_the_sdk_and_plain_scripts() -> None:
    form = analyse("import os\nlr = os.environ['LR']\nos.environ['X'] = '1'\n")
    assert form is not None and form.style == "env" and set(form.options) == {"LR", "lr"}
    sdk = analyse("import hopyard as hop, argparse\nargparse.ArgumentParser()\np = hop.params(lr=1)\n")
    assert sdk is not None and sdk.style == "sdk"
    assert analyse("print(1)\n") is None and analyse("def (:\n") is None
