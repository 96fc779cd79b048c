"""Commands with `--engine ray`, whose worker is this process: answers and resuming."""

import contextlib
import json
import shutil

import pyarrow
import pyarrow.parquet as parquet
import pytest
from common import CHARACTER, GPT, SIM, json_lines, run_main, write_lines, zipped

from roformer_keras import RoFormerTextClassifier, distributed
from roformer_keras.distributed import job as jobs
from roformer_keras.distributed.options import RayOptions
from roformer_keras.distributed.parts import PieceWorker
from roformer_keras.errors import ConfigurationError
from roformer_keras.verbs.embed import Embed

TEXTS = ["今天天气不错", "我爱北京", "你好", "天气很好", "北京不错"]
MASKED = [f"{text}[MASK]" for text in TEXTS]


@pytest.fixture(autouse=True)
def computed():
    """The numbers of the pieces that were computed; pieces go to a worker here."""
    numbers = []

    def compute(job, ray, left):
        worker = PieceWorker(job._task)
        for number in left:
            numbers.append(number)
            row = {"piece": number, **job.pieces[number]._asdict()}
            results = worker({name: [value] for name, value in row.items()})
            yield {name: values[0] for name, values in results.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.FolderJob, "_compute", compute)
        patch.setattr(jobs, "ray_of", lambda *arguments: contextlib.nullcontext())
        yield numbers


@pytest.fixture(autouse=True)
def models_are_loaded_once(causal_lm, sim, monkeypatch):
    """Compiled functions are kept."""
    for model in (causal_lm, sim):
        load = lambda source, model=model, **options: model  # noqa: E731
        monkeypatch.setattr(type(model), "from_preset", load)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task") / "task"
    RoFormerTextClassifier.from_preset(CHARACTER, num_classes=2).save_to_preset(folder)
    return folder


def parts(folder):
    """The rows of all parts, in their order."""
    lines = []
    for path in sorted(folder.glob("part-*")):
        if path.suffix == ".parquet":
            lines += parquet.read_table(path).to_pylist()
        else:
            lines += json_lines(path.read_text(encoding="utf-8"))
    return lines


GENERATE = ("--source", GPT, "--max-length", 12, "--seed", 3)
PARAPHRASE = ("--source", SIM, "--n", 3, "--k", 2, "--max-new-tokens", 5, "--seed", 3)
# It compiles less than Keras.
OPENVINO = ("--engine", "openvino")
RAY_OPENVINO = ("--engine", "ray", "--worker-engine", "openvino")


@pytest.mark.slow
def test_answers_are_those_of_one_process(tmp_path, task, capsys):
    file = write_lines(tmp_path / "texts.txt", TEXTS)
    for number, (verb, *flags) in enumerate(
        (
            ("embed", "--source", SIM),
            ("generate", *GENERATE, "--num-return-sequences", 2),
            ("generate", *GENERATE, "--method", "beam", "--num-beams", 2),
            ("paraphrase", *PARAPHRASE),
            ("predict", task),
        )
    ):
        writes = verb in ("generate", "paraphrase")
        whole, folder = tmp_path / f"{number}.jsonl", tmp_path / str(number)
        words = [verb, *flags, file, "--quiet"]
        engine = OPENVINO if writes else ()
        assert run_main(*words, *engine, "-o", whole, capsys=capsys)[0] == 0
        engine = RAY_OPENVINO if writes else RAY_OPENVINO[:2]
        words += [*engine, "--piece-rows", 2, "-o", folder]
        code, out, err = run_main(*words, capsys=capsys)
        assert (code, out) == (0, f"{folder}\n"), err
        compare(parts(folder), json_lines(whole.read_text(encoding="utf-8")))


def compare(found, expected):
    """Checks that values are equal, numbers up to rounding."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    elif isinstance(expected, list):
        for pair in zip(found, expected, strict=True):
            compare(*pair)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        compare(list(found.values()), list(expected.values()))
    else:
        assert found == expected


@pytest.mark.slow
def test_pairs_and_masks(tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    write_lines(pairs, ["first,second,id", '"今天\n天气",你好,1', "北京,北京,2"])
    words = ["similarity", pairs, "--source", SIM, "--quiet"]
    assert run_main(*words, "-o", tmp_path / "one.jsonl", capsys=capsys)[0] == 0
    flags = ("--engine", "ray", "-o", tmp_path / "many")
    assert run_main(*words, *flags, capsys=capsys)[0] == 0
    answered = parts(tmp_path / "many")
    assert [row.pop("id") for row in answered] == ["1", "2"]
    compare(answered, json_lines((tmp_path / "one.jsonl").read_text(encoding="utf-8")))

    words = ["fill-mask", "--source", CHARACTER, "--top-k", 2]
    _, out, _ = run_main(*words, *MASKED, "--json", capsys=capsys)
    file = write_lines(tmp_path / "masked.txt", [*MASKED, "今天"])
    flags = ("--engine", "ray", "-o", tmp_path / "filled", "--output-format", "parquet")
    assert run_main(*words, file, *flags, capsys=capsys)[0] == 0
    *answered, bad = parts(tmp_path / "filled")
    assert [row.pop("error") for row in answered] == [None] * len(MASKED)
    compare(answered, json_lines(out))
    assert bad["masks"] is None and "must hold [MASK]" in bad["error"]


BAD = [
    '{"id": 0, "text": "今天"}',
    "",
    '{"id": 2, "text": null, "more": [1]}',
    "{",
    '{"id": 4, "text": " "}',
    '{"id": 5, "other": 1}',
    '{"id": 6, "text": "你好"}',
]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_rows_without_an_answer_are_kept_and_listed(format, tmp_path, capsys):
    file, folder = write_lines(tmp_path / "a.jsonl", BAD), tmp_path / "out"
    words = ["embed", file, "--source", SIM, "--engine", "ray", "-o", folder]
    words += ["--piece-rows", 3, "--output-format", format]
    code, _, err = run_main(*words, capsys=capsys)
    assert code == 0, err
    answered = parts(folder)
    assert [row.get("id") for row in answered] == [0, 2, None, 4, 5, 6]
    assert [row["vector"] is None for row in answered] == [False, *[True] * 4, False]
    assert [bool(row.get("error")) for row in answered] == [False, *[True] * 4, False]
    if format == "jsonl":
        assert answered[1]["more"] == [1]
    assert f"4 of {len(BAD)} have no answer" in err
    assert f"line 3 of {file}: a text must be a str that is not empty, got None" in err
    record = json.loads((folder / "_job.json").read_bytes())
    assert (record["state"], record["bad_rows"]) == ("done", 4)
    code, _, err = run_main(
        *words, "--on-bad-row", "error", "--overwrite", capsys=capsys
    )
    assert code == 2 and f"error: line 3 of {file}: a text must" in err


@pytest.mark.slow
def test_parquet_keeps_types_and_refuses_what_does_not_fit(tmp_path, capsys):
    table = pyarrow.table({"n": [1, 2, 3], "text": TEXTS[:3], "v": [[1.5], None, []]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    words = ["--source", SIM, "--engine", "ray", "--quiet", "-o"]
    pattern = f"file://{tmp_path}/*.parquet"
    out = run_main("embed", pattern, *words, tmp_path / "out", capsys=capsys)
    assert out[0] == 0, out
    written = pyarrow.concat_tables(
        parquet.read_table(path) for path in sorted((tmp_path / "out").glob("part-*"))
    )
    assert written.select(["n", "text", "v"]).equals(table)
    assert written.schema.field("vector").type == pyarrow.list_(pyarrow.float32())

    lines = ['{"text": "今"}', '{"text": "天", "n": 1}', '{"text": 3}']
    file = write_lines(tmp_path / "b.jsonl", lines)
    flags = ("--output-format", "parquet", "--piece-rows", 1)
    assert not run_main("embed", file, *words, tmp_path / "b", *flags, capsys=capsys)[0]
    reasons = [row["error"] for row in parts(tmp_path / "b")]
    assert reasons[0] is None
    assert reasons[1] == "the first rows have no 'n', which would be lost"
    assert reasons[2] == "'text' must be string as in the first rows, got 3"


@pytest.mark.slow
def test_a_job_resumes_what_has_no_part(tmp_path, capsys, computed):
    file, folder = write_lines(tmp_path / "a.txt", TEXTS), tmp_path / "out"
    words = ["generate", file, *GENERATE[:-2], *RAY_OPENVINO, "-o", folder]
    words += ["--piece-rows", 2]
    assert run_main(*words, "--seed", 5, capsys=capsys)[0] == 0
    whole = {path.name: path.read_bytes() for path in folder.glob("part-*")}
    assert len(whole) == 3 and computed == [0, 1, 2]
    # What an end in its midst leaves, and files that no process wrote whole.
    record = json.loads((folder / "_job.json").read_bytes())
    (folder / "_job.json").write_text(json.dumps({**record, "state": "running"}))
    (folder / "part-00001.jsonl").unlink()
    (folder / ".partial-1-x.part-00001.jsonl").write_text("{")
    code, _, err = run_main(*words, "--seed", 6, capsys=capsys)
    assert code == 4 and "seed was 5, now 6" in err
    code, _, err = run_main(*words, "--seed", 5, capsys=capsys)
    assert code == 0 and "resuming after 3 of 5" in err
    assert computed == [0, 1, 2, 1]
    assert {path.name: path.read_bytes() for path in folder.glob("part-*")} == whole
    assert not list(folder.glob(".partial*"))
    code, _, err = run_main(*words, "--seed", 5, capsys=capsys)
    assert code == 4 and f"{folder} exists" in err


def test_a_seed_that_is_drawn_is_kept(tmp_path, capsys, monkeypatch):
    file, folder = write_lines(tmp_path / "a.txt", ["今天"] * 4), tmp_path / "out"
    words = ["generate", file, *GENERATE[:-2], *RAY_OPENVINO, "-o", folder]
    words += ["--piece-rows", 1]
    write = PieceWorker._write

    def end_at_third(worker, number, piece):
        if number == 2:
            raise ConfigurationError("enough")
        return write(worker, number, piece)

    with monkeypatch.context() as patch:
        patch.setattr(PieceWorker, "_write", end_at_third)
        code, _, err = run_main(*words, capsys=capsys)
    assert code == 2 and "2 of 4 are kept" in err and "error: enough" in err
    assert run_main(*words, capsys=capsys)[0] == 0
    seed = json.loads((folder / "_job.json").read_bytes())["seed"]
    whole = tmp_path / "whole"
    words[words.index(folder)] = whole
    assert run_main(*words, "--seed", seed, capsys=capsys)[0] == 0
    assert parts(whole) == parts(folder)


def test_wrong_usage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {"a.txt": "今\n", "b.jsonl": "{}\n", "c.csv": "x,y\n1,2\n", "f.txt": ""}
    contents |= {"d.csv": "text,vector\n今,2\n", "e.csv": "x,x\n1,2\n"}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    for words, message in (
        ("a.txt --num-workers 2", "--num-workers needs --engine ray"),
        ("a.txt --engine ray", "--engine ray reads files and writes a folder"),
        ("- --engine ray -o out", "reads files and writes a folder"),
        ("none/*.txt --engine ray -o out", "cannot read none/*.txt"),
        ("*.md --engine ray -o out", "has no file to read"),
        ("[ab].* --engine ray -o out", "the files must all be"),
        ("nope://x/y --engine ray -o out", "a URI that pyarrow knows"),
        ("a.txt --engine ray -o ", "an output must have a name, got ''"),
        ("a.txt --engine ray -o x/y", "is not a folder: make it first"),
        ("a.txt --engine ray -o a.txt", "is a file: give the name of a"),
        ("a.txt --engine ray -o full", "must hold nothing but a job"),
        ("c.csv --engine ray -o out", "the columns are 'x', 'y'"),
        ("d.csv --engine ray -o out", "must not have a column 'vector'"),
        ("[cd].csv --engine ray -o out", "must have the same columns"),
        ("e.csv --engine ray -o out", "must name its columns, each once"),
        ("f.txt --engine ray -o out", "has no row"),
        ("a.txt --engine ray -o out --fields a,b", "--fields must name 1 columns"),
    ):
        arguments = ("embed", *words.split(" "), "--source", SIM)
        code, out, err = run_main(*arguments, capsys=capsys)
        assert code in (2, 4) and out == "", words
        assert message in err and "Traceback" not in err, (words, err)
        if (tmp_path / "out").exists():
            assert (tmp_path / "out" / "_job.json").exists(), words
            shutil.rmtree(tmp_path / "out")


class Batches:
    """A stand-in for a dataset of Ray: its worker is this process."""

    def __init__(self, table):
        self._table = table

    def map_batches(self, worker, *, fn_constructor_args, batch_size, **options):
        made, rows = worker(*fn_constructor_args), self._table.num_rows
        parts = [
            made(self._table.slice(at, batch_size)) for at in range(0, rows, batch_size)
        ]
        return pyarrow.concat_tables(parts).to_pylist()


@pytest.mark.slow
def test_a_dataset_is_answered_as_by_one_process(causal_lm, sim, task):
    texts = [*TEXTS[:2], None, *TEXTS[3:]]
    data = pyarrow.table({"n": range(5), "text": texts, "other": ["天气"] * 5})
    good, batch = [0, 1, 3, 4], {"batch_rows": 2}
    options = {"seed": 3, "max_new_tokens": 5, "engine": "openvino"}
    numbers = {"number_field": "n", **batch}

    def answers(verb, *arguments, **options):
        rows = getattr(distributed, verb)(Batches(data), *arguments, **options)
        assert [row["n"] for row in rows] == [0, 1, 2, 3, 4]
        assert [at for at, row in enumerate(rows) if row["error"] is None] == good
        return [rows[at] for at in good]

    # A row without a text has a number too.
    written = causal_lm.generate(
        TEXTS, num_return_sequences=1, return_scores=True, **options
    )
    similar = sim.paraphrase(TEXTS, 3, 2, **options)
    for expected, rows in (
        (written, answers("generate", GPT, **options, **numbers)),
        (similar, answers("paraphrase", SIM, n=3, k=2, **options, **numbers)),
    ):
        for at, row in zip(good, rows, strict=True):
            compare(
                row["outputs"],
                [{"text": item.output, "score": item.score} for item in expected[at]],
            )
    pairs = sim.similarity([TEXTS[at] for at in good], ["天气"] * 4, verbose=0)
    rows = answers("similarity", SIM, fields=("text", "other"), **batch)
    compare([row["similarity"] for row in rows], pairs.tolist())
    labels = RoFormerTextClassifier.from_preset(task).classify(texts[:2])
    rows = answers("predict", task, **batch)
    assert [row["label"] for row in rows][:2] == [str(label) for label in labels]
    masked = pyarrow.table({"text": MASKED})
    rows = distributed.fill_mask(Batches(masked), CHARACTER, top_k=2, batch_rows=2)
    assert [len(row["masks"][0]) for row in rows] == [2] * len(TEXTS)


def test_a_seed_needs_the_numbers_of_the_rows():
    with pytest.raises(
        ConfigurationError, match="a seed needs the numbers of the rows"
    ):
        distributed.generate(None, GPT, seed=1)


EMBED = ("embed", "--source", SIM, "--engine", "ray", "--quiet")


def test_no_file_of_others_is_deleted(tmp_path, capsys):
    """Not even with --overwrite: an input, or a data set of another program."""
    other = tmp_path / "other"
    other.mkdir()
    parquet.write_table(pyarrow.table({"text": TEXTS}), other / "part-0.parquet")
    for file, output, message in (
        (other, other, "must not lie in the input"),
        (other, other / "vectors", "must not lie in the input"),
        (other / "part-0.parquet", other, "must not hold the input"),
        (write_lines(tmp_path / "a.txt", TEXTS), other, "no _job.json that says"),
    ):
        code, _, err = run_main(
            *EMBED, file, "-o", output, "--overwrite", capsys=capsys
        )
        assert code == 4 and message in err, err
    assert parquet.read_table(other / "part-0.parquet").num_rows == len(TEXTS)
    assert [path.name for path in other.iterdir()] == ["part-0.parquet"]


def test_a_wrong_start_is_corrected_and_another_vocabulary_is_not(tmp_path, capsys):
    file, folder = tmp_path / "a.csv", tmp_path / "out"
    write_lines(file, ["text,id", *(f"{text},1" for text in TEXTS)])
    words = (*EMBED, file, "-o", folder, "--piece-rows", "2")
    assert run_main(*words, "--fields", "txet", capsys=capsys)[0] == 2
    assert run_main(*words, capsys=capsys)[0] == 0
    # The content of files counts, not their names alone.
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_bytes(zipped(SIM, "vocab.txt"))
    (folder / "part-00002.jsonl").unlink()
    record = json.loads((folder / "_job.json").read_bytes())
    record["state"] = "running"
    record["settings"]["vocabulary"] = str(vocabulary)
    record["inputs"]["vocabulary"] = [[str(vocabulary), 1, 1]]
    (folder / "_job.json").write_text(json.dumps(record), encoding="utf-8")
    code, _, err = run_main(*words, "--vocabulary", vocabulary, capsys=capsys)
    assert code == 4 and "input 'vocabulary' has changed" in err


def test_objects_may_lack_a_text_in_any_piece(tmp_path, capsys):
    file, folder = tmp_path / "a.jsonl", tmp_path / "out"
    write_lines(file, [json.dumps({"text": text}) for text in TEXTS[:2]] + ["{}"] * 2)
    words = (*EMBED, file, "-o", folder, "--piece-rows", "2")
    assert run_main(*words, capsys=capsys)[0] == 0
    assert ["vector" in row and bool(row["vector"]) for row in parts(folder)] == [
        *(True, True, False, False)
    ]


def test_keys_within_objects_are_not_lost_in_parquet(tmp_path, capsys):
    file, folder = tmp_path / "a.jsonl", tmp_path / "out"
    inner = [{"a": 1}, {"a": 2, "b": 3}, {"a": 4}]
    rows = [{"text": "你好", "more": one} for one in inner]
    write_lines(file, map(json.dumps, rows))
    words = (*EMBED, file, "-o", folder, "--piece-rows", "1")
    assert run_main(*words, "--output-format", "parquet", capsys=capsys)[0] == 0
    answered = parts(folder)
    assert [row["error"] is None for row in answered] == [True, False, True]
    assert "'more' must be struct<a: int64>" in answered[1]["error"]


@pytest.mark.parametrize(
    ("rows", "workers", "piece_rows", "expected"),
    [
        (20, 1, None, [20]),
        (20, 3, None, [4] * 5),
        (5, 8, None, [1] * 5),
        (20, 3, 7, [7, 7, 6]),
        (5000, 2, None, [1250] * 4),
        (9000, 2, None, [2048] * 4 + [808]),
    ],
)
def test_every_worker_has_work(rows, workers, piece_rows, expected, tmp_path):
    file = write_lines(tmp_path / "a.txt", [f"第{n}行" for n in range(rows)])
    options = RayOptions(num_workers=workers, piece_rows=piece_rows)
    with jobs.FolderJob(Embed(source=SIM), file, tmp_path / "out", options) as job:
        assert [piece.rows for piece in job.pieces] == expected
    # As many workers or not, it is the same job.
    options = RayOptions(num_workers=1, piece_rows=piece_rows)
    with jobs.FolderJob(Embed(source=SIM), file, tmp_path / "out", options) as job:
        assert [piece.rows for piece in job.pieces] == expected
