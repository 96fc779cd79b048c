"""Each surface is made from the class of a verb, and so are those of a new one."""

import argparse
import dataclasses
import inspect
from collections import Counter

import pyarrow
import pytest
from common import SIM, json_lines, parser_of, run_main, write_lines

from roformer_keras import distributed
from roformer_keras.base.checks import number
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli.main import find_commands
from roformer_keras.distributed import dataset
from roformer_keras.distributed.files import RayOptions
from roformer_keras.distributed.worker import Worker
from roformer_keras.verbs import VERBS, generate, register
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.surfaces import Inputs, Output, Route
from roformer_keras.verbs.verb import Verb

# What a command has besides the options of its verb.
OTHER_FLAGS = {
    *("help", "file", "text", "texts", "pair", "query", "output", "as_json"),
    *("fields", "format", "header", "encoding"),
    *("engine", "worker_engine", "overwrite", "quiet"),
    *(f"ray.{field.name}" for field in dataclasses.fields(RayOptions)),
}
# Options without which a verb cannot be.
NEEDED = {"search": {"index": "x"}}


def flags_of(name):
    return {action.dest: action for action in parser_of(name)._actions}


@pytest.mark.parametrize("name", VERBS)
def test_a_command_has_the_options_of_its_verb(name):
    kind, flags = VERBS[name], flags_of(name)
    assert flags.keys() - OTHER_FLAGS == {*kind.option_names()} - {"engine"}
    for field in dataclasses.fields(kind):
        if field.init and field.name != "engine":
            assert flags[field.name].help, field.name
    assert inspect.getdoc(find_commands()[name].run).startswith(
        inspect.getdoc(kind).partition("\n")[0]
    )


@pytest.mark.parametrize("name", VERBS)
def test_a_function_on_a_dataset_has_the_options_of_its_verb(name):
    function = getattr(distributed, name.replace("-", "_"))
    with pytest.raises(ConfigurationError, match="has no option nonsense") as error:
        function(None, "x", nonsense=1)
    known = error.value.message.partition("it has ")[2].split(", ")
    assert known == VERBS[name].option_names()
    assert VERBS[name].of({"source": "x", **NEEDED.get(name, {})}).source == "x"
    described = inspect.getdoc(function)
    assert all(f"`{column}`" in described for column in VERBS[name].output.columns)
    assert all(f"`{option}`" in described for option in known if option != "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting(generate.Generate):
    """Write continuations of prompts.

    Args:
        eta_cutoff: tokens of less probability are not drawn.
    """

    eta_cutoff: float = number(1.0, above=0)


def test_a_new_option_is_one_field(monkeypatch):
    """As in CONTRIBUTING.md: command, function on a dataset, and the method."""
    monkeypatch.setitem(VERBS, "generate", Cutting)
    flag = flags_of("generate")["eta_cutoff"]
    assert flag.option_strings == ["--eta-cutoff"]
    assert flag.help.startswith("tokens of less probability are not drawn")
    assert flag.type("1.5") == 1.5
    with pytest.raises(argparse.ArgumentTypeError, match="a finite number above 0"):
        flag.type("0")
    calls = []
    monkeypatch.setattr(dataset, "map_texts", lambda *of, **options: calls.append(of))
    distributed.generate(None, "x", eta_cutoff=1.5)
    assert calls[0][1].arguments()["eta_cutoff"] == 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count(Verb):
    """Count the most frequent characters.

    Args:
        most: how many characters.
    """

    source: str = str(SIM)
    most: int = 1

    name = "count"
    inputs = Inputs(file="texts, one a line", typed="text to count")
    output = Output({"characters": [{"character": str, "times": int}]}, ".jsonl")
    route = Route("/count", answers="counts")
    examples = ("count --text 今天今",)

    def load(self):
        return LoadedSource("Nothing", None, None)

    def answer(self, loaded, rows, numbers, on_step=None):
        counts = [Counter(text).most_common(self.most) for (text,) in rows]
        shown = [[{"character": c, "times": n} for c, n in row] for row in counts]
        return {"characters": shown}


@pytest.fixture
def counting():
    register(Count)
    yield
    del VERBS["count"]


def test_a_new_verb_is_one_class(counting, tmp_path, capsys, monkeypatch):
    """Command, help, function on a dataset and its Arrow types, from registering it."""
    monkeypatch.setattr("roformer_keras.cli.answering.start_backend", lambda: None)
    write_lines(tmp_path / "x.txt", ["今天今", "好"])
    words = [str(tmp_path / "x.txt"), "-o", str(tmp_path / "y.jsonl"), "--most", "2"]
    code, _, err = run_main("count", *words, "--quiet", capsys=capsys)
    assert (code, err) == (0, "")
    expected = [{"character": "今", "times": 2}, {"character": "天", "times": 1}]
    first, second = json_lines((tmp_path / "y.jsonl").read_text(encoding="utf-8"))
    assert first == {"text": "今天今", "characters": expected}
    assert second["characters"] == [{"character": "好", "times": 1}]
    help_ = run_main("count", "--help", capsys=capsys)[1]
    assert "Count the most frequent characters." in help_
    assert "how many characters" in help_ and "--text TEXT" in help_
    assert "count" in run_main("--help", capsys=capsys)[1]
    assert "`characters`: list of {character: str, times: int}" in inspect.getdoc(
        distributed.count
    )
    table = pyarrow.table({"text": ["今天今", ""]})
    answered = Worker(Count(most=2), ("text",))(table)
    assert answered.column("characters").to_pylist() == [expected, None]
    assert str(answered.schema.field("characters").type) == (
        "list<item: struct<character: string, times: int64>>"
    )
    assert answered.column("error").to_pylist()[0] is None
