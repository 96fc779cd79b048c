"""Each surface has the options of its verb, and those that a verb gets."""

import argparse
import dataclasses
import importlib
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
from common import ROOT

from roformer_keras.base.checks import number
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli import layouts
from roformer_keras.cli.flags import add_flags
from roformer_keras.cli.main import find_commands
from roformer_keras.cli.verbs import VerbCommand
from roformer_keras.distributed import dataset
from roformer_keras.distributed.files import RayOptions
from roformer_keras.server.requests import ROUTES, request_model
from roformer_keras.verbs import writing
from roformer_keras.verbs.registry import VERBS
from roformer_keras.verbs.writing import Generate

# What a command or a request has besides the options of its verb.
OTHER_FLAGS = {
    *("help", "file", "text", "texts", "pair", "query", "output", "as_json"),
    *("fields", "format", "header", "encoding"),
    *("engine", "worker_engine", "overwrite", "quiet"),
    *(f"ray.{field.name}" for field in dataclasses.fields(RayOptions)),
}
OTHER_FIELDS = {
    "embed": {"input", "model", "encoding_format", "dimensions", "user"},
    "generate": {
        *("prompt", "model", "stream", "stream_options", "user", "echo", "logprobs"),
        *("best_of", "suffix", "logit_bias", "frequency_penalty", "presence_penalty"),
    },
    "similarity": {"pairs"},
    "search": {"queries"},
    "rerank": {"model", "query", "documents", "top_n", "return_documents"},
    "paraphrase": {"texts"},
    "fill-mask": {"texts"},
    "predict": {"rows"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting(Generate):
    """Continuations of prompts.

    Args:
        eta_cutoff: tokens of less probability are not drawn.
    """

    eta_cutoff: float = number(1.0, above=0)


def flags_of(command):
    parser = argparse.ArgumentParser()
    add_flags(parser, command)
    return {action.dest: action for action in parser._actions}


@pytest.mark.parametrize("name", VERBS)
def test_a_command_has_the_options_of_its_verb(name):
    module, kind = find_commands()[name], VERBS[name]
    assert resolve_name(module.VERB) is kind
    flags = flags_of(module)
    assert flags.keys() - OTHER_FLAGS == {*kind.option_names()} - {"engine"}
    for field in dataclasses.fields(kind):
        if field.init and field.name != "engine":
            assert flags[field.name].help, field.name
    lines = ROOT / "roformer_keras" / "cli" / f"{module.__name__.split('.')[-1]}.py"
    assert len(lines.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("name", VERBS)
def test_a_function_on_a_dataset_has_the_options_of_its_verb(name):
    function = getattr(dataset, name.replace("-", "_"))
    with pytest.raises(ConfigurationError, match="has no option nonsense") as error:
        function(None, "x", nonsense=1)
    known = error.value.message.partition("it has ")[2].split(", ")
    assert known == VERBS[name].option_names()
    # The names are those that the docstring of the class lists.
    assert VERBS[name].of({"source": "x"}).source == "x"


@pytest.mark.parametrize("kind", ROUTES)
def test_a_route_has_the_options_of_its_verb(kind):
    route = ROUTES[kind]
    options, left_out = {*kind.option_names()}, {*route.left_out}
    # No name is of an option that is gone.
    shared = {"source", "config", "vocabulary", "batch_tokens", "batch_size", "engine"}
    assert left_out - shared <= options
    assert route.renamed.keys() | route.changes.keys() <= options
    expected = {route.renamed.get(name, name) for name in options - left_out}
    fields = {*request_model(kind, route).model_fields}
    assert fields - OTHER_FIELDS[kind.name] == expected
    assert {*VERBS.values()} == {*ROUTES}


def test_a_new_option_is_one_field(monkeypatch):
    """As in CONTRIBUTING.md: command, job on Ray, dataset, HTTP, and the method."""
    monkeypatch.setattr(writing, "Generate", Cutting)
    command = importlib.import_module("roformer_keras.cli.generate")
    flag = flags_of(command)["eta_cutoff"]
    assert flag.option_strings == ["--eta-cutoff"]
    assert flag.help.startswith("tokens of less probability are not drawn")
    assert flag.type("1.5") == 1.5
    with pytest.raises(argparse.ArgumentTypeError, match="a finite number above 0"):
        flag.type("0")
    # The job of a command, in this process and on Ray.
    for engine in ("keras", "ray"):
        flags = {"eta_cutoff": 1.5, "engine": engine, "output": "out"}
        verb = VerbCommand(command.VERB, {**flags, "source": "x"}).verb
        assert isinstance(verb, Cutting)
        assert verb.arguments()["eta_cutoff"] == 1.5
    monkeypatch.setattr(dataset, "Generate", Cutting)
    calls = []
    monkeypatch.setattr(dataset, "map_texts", lambda *of, **options: calls.append(of))
    dataset.generate(None, "x", eta_cutoff=1.5)
    assert calls[0][1].arguments()["eta_cutoff"] == 1.5
    route = ROUTES[Generate]
    body = request_model(Cutting, route)(prompt="今", eta_cutoff=1.5)
    others = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    assert route.options(body, Cutting) == {"eta_cutoff": 1.5, **others}
    with pytest.raises(ValueError, match="greater than 0"):
        request_model(Cutting, route)(prompt="今", eta_cutoff=0)


def test_options_of_one_name_are_those_of_the_last_class():
    """A job names its engines, of which a verb has some."""
    for classes, has_ray in (((Generate, layouts.JOB), True), ((Generate,), False)):
        command = SimpleNamespace(run=lambda: None, OPTIONS=classes)
        choices = flags_of(command)["engine"].choices
        assert ("ray" in choices) == has_ray
