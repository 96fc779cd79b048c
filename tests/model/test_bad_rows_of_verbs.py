"""A row that a verb refuses is refused with the same words on every surface."""

import functools
import json

import pyarrow
import pytest
from common import CHARACTER, GPT, SIM, write_lines
from finetuning_cases import load_small
from starlette.testclient import TestClient

from roformer_keras import RoFormerTextClassifier, search
from roformer_keras.distributed.worker import Worker
from roformer_keras.server import ServerOptions, create_app
from roformer_keras.tables.files import text_names
from roformer_keras.verbs import VERBS, loading

GOOD, MASKED = "今天天气不错", "今天[MASK]气"
EMPTY = "a text must be a str that is not empty, got ''"
# The sources of verbs, where not RoFormerSim.
SOURCES = {"generate": GPT, "fill-mask": CHARACTER, "predict": "task"}
# Texts of a row that a verb refuses, and why.
BAD = {
    "embed": [(("",), EMPTY)],
    "similarity": [((GOOD, ""), EMPTY), (("", GOOD), EMPTY)],
    "search": [(("",), EMPTY)],
    "rerank": [((GOOD, ""), EMPTY)],
    "predict": [((GOOD,) * 3, "a row must have 1 or 2 texts, got 3")],
    "generate": [(("",), EMPTY)],
    "paraphrase": [(("",), EMPTY)],
    "fill-mask": [
        (("",), EMPTY),
        ((GOOD,), f"a text to fill must hold [MASK], got {GOOD!r}"),
    ],
}
CELLS = [(name, row, why) for name, rows in BAD.items() for row, why in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    model = load_small(RoFormerTextClassifier, classes=["a", "b"])
    model.save_to_preset(folder / "task")
    sim = loading.load_source(SIM, otherwise="RoFormerSim").model
    search.build_index(folder / "index", [GOOD], sim)
    return folder


@pytest.fixture(scope="module", autouse=True)
def load_once():
    with pytest.MonkeyPatch.context() as patch:
        for load in ("load_source", "load_task"):
            patch.setattr(loading, load, functools.cache(getattr(loading, load)))
        yield


def source_of(name, folder):
    source = SOURCES.get(name, SIM)
    return str(folder / source if name == "predict" else source)


def options_of(name, folder):
    return {"index": str(folder / "index")} if name == "search" else {}


def good_row(name, row):
    texts = tuple(MASKED if name == "fill-mask" else GOOD for _ in row)
    return texts[:1] if name == "predict" else texts


@functools.cache
def client_of(source, index):
    options = ServerOptions(index=index) if "sim" in source else None
    client = TestClient(create_app(source, options), raise_server_exceptions=False)
    client.__enter__()
    return client


@pytest.mark.parametrize(("name", "row", "why"), CELLS)
def test_a_bad_row(name, row, why, folder, tmp_path, refused):
    kind, source = VERBS[name], source_of(name, folder)
    rows, fields = [good_row(name, row), row], kind.inputs.fields
    # In a file of a command; a table has no text of another number of columns.
    if fields and kind.inputs.file and not kind.inputs.may_be_blank:
        names = text_names(len(row))
        lines = [json.dumps(dict(zip(names, one, strict=True))) for one in rows]
        path = write_lines(tmp_path / "x.jsonl", lines)
        words = [*options_of(name, folder).values(), path, "--source", source]
        if name in ("generate", "paraphrase"):
            path = write_lines(tmp_path / "x.txt", [one for (one,) in rows])
            words = [path, "--source", source]
        assert f"line 2 of {path}: {why}" in refused(name, *map(str, words))
    # Typed.
    if kind.inputs.flag and not kind.inputs.is_shared:
        flag = f"--{kind.inputs.flag}"
        typed = [word for one in rows for word in (flag, *one)]
        words = [*options_of(name, folder).values(), *typed]
        source_words = ["--source", source] if fields else []
        words = [source, *typed] if not fields else [*words, *source_words]
        assert f"{kind.inputs.flag} 2: {why}" in refused(name, *words)
    # In a block of Ray.
    if fields:
        verb = kind.of({"source": source, **options_of(name, folder)})
        columns = dict(zip(fields, zip(*rows, strict=True), strict=True))
        answered = Worker(verb, fields)(pyarrow.table(columns))
        assert answered.column("error").to_pylist() == [None, why]
    # Over HTTP.
    route, texts = kind.route, [list(one) if len(one) > 1 else one[0] for one in rows]
    # Rows of a request are of one length.
    texts = texts if fields else texts[1:]
    body = {route.texts: texts}
    if route.style == "ranking":
        body = {"query": row[0], route.texts: [one for _, one in rows]}
    if route.style == "completions":
        body["max_tokens"] = 4
    answer = client_of(source, str(folder / "index")).post(route.path, json=body)
    message = answer.json()["error"]["message"]
    assert (answer.status_code, message) == (
        400,
        f"{route.texts}.{len(texts) - 1}: {why}",
    )
