"""Commands with `--engine ray`, whose workers are this process."""

import contextlib
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest
from common import CHARACTER, GPT, SIM, json_lines, run_main, write_lines

from roformer_keras import RoFormerTextClassifier, distributed, search
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.distributed import dataset as datasets
from roformer_keras.distributed import files
from roformer_keras.verbs import VERBS

data = pytest.importorskip("ray.data")
# Ray Data sets fields that it calls deprecated itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`use_:DeprecationWarning:ray.data.context"
)
TEXTS = ["今天天气不错", "我爱北京", "你好", "天气很好", "北京不错"]


class Local:
    """A dataset of Ray that computes at once, in this process."""

    def __init__(self, rows):
        self.rows = rows

    def flat_map(self, function):
        return Local([row for one in self.rows for row in function(one)])

    def repartition(self, target_num_rows_per_block):
        return self

    def map_batches(self, kind, fn_constructor_args, batch_size, **options):
        worker, rows = kind(*fn_constructor_args), []
        for start in range(0, len(self.rows), batch_size):
            table = pyarrow.Table.from_pylist(self.rows[start : start + batch_size])
            rows += worker(table).to_pylist()
        return Local(rows)

    def drop_columns(self, names):
        kept = ({k: v for k, v in row.items() if k not in names} for row in self.rows)
        return Local(list(kept))

    def write_parquet(self, path):
        parquet.write_table(pyarrow.Table.from_pylist(self.rows), f"{path}/0.parquet")

    def write_json(self, path, force_ascii):
        lines = (json.dumps(row, ensure_ascii=force_ascii) for row in self.rows)
        write_lines(Path(path, "0.json"), lines)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(data, "from_items", lambda items, **_: Local(items))
    nothing = lambda *arguments, **_: contextlib.nullcontext()  # noqa: E731
    monkeypatch.setattr(files, "ray_of", nothing)
    monkeypatch.setattr(datasets, "check_resources", nothing)


@pytest.fixture(autouse=True)
def models_are_loaded_once(causal_lm, sim, monkeypatch):
    """Compiled functions are kept."""
    for model in (causal_lm, sim):
        load = lambda source, model=model, **options: model  # noqa: E731
        monkeypatch.setattr(type(model), "from_preset", load)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files, an index and a task."""
    folder = tmp_path_factory.mktemp("ray")
    write_lines(folder / "texts.txt", TEXTS)
    write_lines(folder / "masked.txt", [f"{text}[MASK]" for text in TEXTS])
    write_lines(folder / "pairs.csv", ["first,second", *(f"{x},北京" for x in TEXTS)])
    write_lines(folder / "ranks.csv", ["first,second", *(f"{x},北京" for x in TEXTS)])
    task = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=2)
    task.save_to_preset(folder / "task")
    return folder


def rows_of(output):
    (path,) = output.iterdir()
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    return json_lines(path.read_text(encoding="utf-8"))


def compare(ours, expected):
    """Checks that values are equal, numbers up to rounding."""
    if isinstance(expected, float):
        assert ours == pytest.approx(expected, abs=1e-5)
    elif isinstance(expected, list):
        for pair in zip(ours, expected, strict=True):
            compare(*pair)
    elif isinstance(expected, dict):
        assert list(ours) == list(expected)
        compare(list(ours.values()), list(expected.values()))
    else:
        assert ours == expected


# Command -> its words, and those of a file on Ray that differ.
COMMANDS = {
    "embed": ("texts.txt", "--source", SIM),
    "similarity": ("pairs.csv", "--source", SIM),
    "predict": ("task", "texts.txt"),
    "generate": ("texts.txt", "--source", GPT, "--max-length", 12, "--seed", 3),
    "paraphrase": ("texts.txt", "--source", SIM, "--n", 3, "--k", 2, "--seed", 3),
    "fill-mask": ("masked.txt", "--source", CHARACTER, "--top-k", 2),
    "search": ("index", "texts.txt", "--source", SIM, "--top-k", 2),
    "rerank": ("ranks.csv", "--source", SIM),
}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_verb_answers_as_in_one_process(
    command, format, folder, sim, tmp_path, monkeypatch, capsys
):
    assert COMMANDS.keys() == VERBS.keys()
    monkeypatch.chdir(folder)
    if command == "search" and not (folder / "index").exists():
        search.build_index("index", TEXTS, sim, source=str(SIM))
    words = (command, *COMMANDS[command], "--quiet")
    local = words
    if command == "fill-mask":
        # Here it takes texts, and no file.
        file, *flags = COMMANDS[command]
        texts = Path(file).read_text(encoding="utf-8").split()
        local = (command, *texts, *flags, "--json")
    code, expected, err = run_main(*local, capsys=capsys)
    assert code == 0, err
    output = tmp_path / "out"
    options = ("--engine", "ray", "--output-format", format, "-o", output)
    code, out, err = run_main(*words, *options, capsys=capsys)
    assert (code, out) == (0, f"{output}\n"), err
    answered = rows_of(output)
    assert [row.pop("line") for row in answered][-1] in (5, 6)
    assert all(row.pop("file").startswith(str(folder)) for row in answered)
    assert [row.pop("error") for row in answered] == [None] * len(TEXTS)
    compare(answered, json_lines(expected))


BAD = [
    '{"id": 0, "text": "今天"}',
    "",
    '{"id": 2, "text": null, "more": [1]}',
    '{"id": 5, "other": 1}',
    '{"id": 6, "text": "你好"}',
]


@pytest.mark.slow
def test_rows_without_an_answer_are_kept_and_say_why(tmp_path, capsys, refused):
    file, output = write_lines(tmp_path / "a.jsonl", BAD), tmp_path / "out"
    words = ["embed", file, "--source", SIM, "--engine", "ray", "-o", output]
    code, _, err = run_main(*words, capsys=capsys)
    assert code == 0 and "2 rows have no answer; the column error says why" in err
    rows = rows_of(output)
    assert [row["line"] for row in rows] == [1, 3, 4, 5]
    assert [row["vector"] is None for row in rows] == [False, True, True, False]
    assert "line 4 of" in rows[2]["error"] and "must have 'text'" in rows[2]["error"]
    assert "line 3 of" in refused(*words, "--overwrite", "--on-bad-row", "error")
    # The output of before is still there.
    assert rows_of(output) == rows


@pytest.mark.slow
def test_files_of_a_folder_and_of_a_pattern_are_read_in_their_order(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for at in (1, 0):
        write_lines(tmp_path / "in" / f"{at}.txt", [TEXTS[at], TEXTS[at + 2]])
    for place in (tmp_path / "in", tmp_path / "in" / "?.txt"):
        words = ["embed", place, "--source", SIM, "--engine", "ray", "--overwrite"]
        output = tmp_path / "out"
        assert run_main(*words, "-o", output, "--quiet", capsys=capsys)[0] == 0
        texts = [row["text"] for row in rows_of(output)]
        assert texts == [TEXTS[0], TEXTS[2], TEXTS[1], TEXTS[3]]


def test_wrong_usage(tmp_path, refused):
    file = write_lines(tmp_path / "a.txt", TEXTS)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    ray = ("--source", SIM, "--engine", "ray")
    for words, code, message in (
        (("embed", file, *ray), 2, "reads files and writes a folder"),
        (("embed", "-", *ray, "-o", "x"), 2, "reads files and writes a folder"),
        (("embed", tmp_path / "no.txt", *ray, "-o", "x"), 2, "there is no file"),
        (("embed", file, *ray, "-o", other), 4, "exists"),
        (("embed", file, *ray, "-o", other, "--overwrite"), 4, "holds mine.txt"),
        (
            ("embed", file, *ray, "-o", "x", "--gpus-per-worker", "1.5"),
            2,
            "gpus_per_worker must be a whole number",
        ),
        (
            ("embed", file, "--num-workers", "2", "-o", "x.npy"),
            2,
            "--num-workers needs --engine ray",
        ),
    ):
        assert message in refused(*words, code=code)
    assert (other / "mine.txt").read_text() == "mine"


def test_a_worker_that_fails_is_told_by_its_last_line():
    text = "ray::Worker()\n  File x\n\x1b[36mValueError: out of tea\x1b[39m\n\n"
    error = files._error_of(RuntimeError(text))
    assert "the workers of Ray have ended: ValueError: out of tea" in str(error)
    assert "\x1b" not in str(error)


def test_a_seed_needs_the_numbers_of_the_rows():
    dataset = Local([{"text": "今"}])
    with pytest.raises(ConfigurationError, match="a seed needs the numbers of the row"):
        distributed.generate(dataset, str(GPT), seed=1)
