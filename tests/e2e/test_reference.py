"""tools/reference: the matrix of comparisons, and the files that it wrote."""

import functools
import json
import zipfile
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from common import SIM, SMALL, reference_folder
from sources import tensors_of

from roformer_keras.verification.report import Comparison, Report
from tools.reference import matrix, round_checkpoint
from tools.reference.bert4keras import CHECKPOINTS, VERSIONS


def test_the_readme_lists_every_file():
    readme = (CHECKPOINTS / "README.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in readme.splitlines() if line[:2] == "| "]
    names = {name.strip("| /") for row in rows for name in row[0].split(", ")}
    files = [*CHECKPOINTS.glob("*.zip"), *(CHECKPOINTS / "saved").iterdir()]
    assert {path.name.removesuffix(".zip") for path in files} <= names
    assert len(files) == 10 + 18
    golden = {path.name for path in CHECKPOINTS.glob("*.npz")}
    assert golden == {f"golden-{version}.npz" for version in VERSIONS}


# === The matrix ===


def test_one_writer_gives_the_committed_file(capsys):
    """`.ci/weekly` runs all of them."""
    if reference_folder() is None:
        pytest.skip("needs bert4keras")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix, "WRITERS", ["losses"])
        assert matrix.main(["goldens"]) == 0
    out = capsys.readouterr().out
    assert "| goldens: losses | bert4keras 0.11.5 | 1 files |  | " in out
    assert out.endswith("\n0 of 1 rows are beyond their bars\n")


def test_a_row_holds_what_is_closest_to_its_bar(monkeypatch, capsys):
    def comparison(case, length, largest, bar=1e-4):
        return Comparison(case, "mlm", length, largest, 0.0, None, bar)

    near, far = comparison("mlm", 2, 4e-5), comparison("lm", 512, 6e-5, bar=1e-3)
    report = Report("x", "bert4keras 1", 1e-7, (near, far, comparison("lm", 513, 3e-4)))
    short, long = matrix.summarize("x", report)
    assert short == matrix.Row("x", "bert4keras 1", "mlm, lm", "2, 512", 4e-5, 1e-4)
    assert (long.lengths, long.passed, short.passed) == ("513", False, True)
    (row, _) = matrix.summarize("x", report, matrix.SMALL_BAR)
    assert (row.largest, row.bar, row.passed) == (6e-5, 1e-5, False)
    report = Report("x", "y", 1e-7, (near, comparison("lm", 2, float("nan"))))
    assert not matrix.summarize("x", report)[0].passed

    monkeypatch.setitem(matrix.PARTS, "small", lambda scratch: [short, long])
    assert matrix.main(["small"]) == 1
    *_, first, second, _, last = capsys.readouterr().out.splitlines()
    assert first == "| x | bert4keras 1 | mlm, lm | 2, 512 | 4.0e-05 | 1.0e-04 | yes |"
    assert second.endswith("| NO |")
    assert last == "1 of 2 rows are beyond their bars"
    with pytest.raises(SystemExit):
        matrix.main(["small", "x"])
    assert "['x'] are not among small, base" in capsys.readouterr().err
    (refused,) = matrix.compare("x", CHECKPOINTS / "none.zip")
    assert not refused.passed
    assert "none.zip does not exist" in capsys.readouterr().err


def test_differences_of_files_show(tmp_path):
    """Numbers are compared, wherever they are; of all else any difference counts."""
    values = {"a": np.float32([1, np.inf, np.nan, 200]), "b": np.arange(3)}
    changed = {**values, "a": np.float32([1, np.inf, np.nan, 202])}
    written = {"a": [1, {"b": 2.0, "c": "x"}], "d": None}

    def compared(name, write):
        for folder, content in (("new", 0), ("old", 1)):
            (tmp_path / folder).mkdir(exist_ok=True)
            write(tmp_path / folder / name, content)
        return matrix.difference(tmp_path / "new" / name, tmp_path / "old" / name)

    def write_arrays(path, number):
        np.savez(path, metadata=str(number), **[values, changed][number])

    def write_text(texts, path, number):
        path.write_text(texts[number])

    def write_datasets(path, number):
        with h5py.File(path, "w") as file:
            for name, value in [changed, values][number].items():
                file[f"group/{name}"] = value

    assert compared("x.npz", write_arrays) == pytest.approx(2 / 202)
    assert compared("x.h5", write_datasets) == pytest.approx(2 / 200)
    for change, expected in (
        ({}, 0),
        ({"a": [1, {"b": 2.5, "c": "x"}]}, 0.2),
        ({"a": [1, {"b": 2.0, "c": "y"}]}, np.inf),
        ({"a": [1]}, np.inf),
        ({"d": 0}, np.inf),
        ({"e": 0}, np.inf),
    ):
        texts = [json.dumps(value) for value in (written, {**written, **change})]
        write_json = functools.partial(write_text, texts)
        assert compared("x.json", write_json) == pytest.approx(expected)
    assert compared("x.data", lambda path, n: path.write_bytes(bytes(n))) == np.inf
    same = functools.partial(write_text, ["same", "same"])
    assert compared("x.txt", same) == 0
    assert matrix.difference(tmp_path / "new" / "x.data", tmp_path / "none") == np.inf
    assert matrix.difference(SIM, SIM) == 0
    assert matrix.difference(SIM, SMALL) == np.inf


# === Shipped weights ===


def test_shipped_weights_are_rounded_and_deflated(tmp_path, capsys):
    target = tmp_path / SIM.name
    arguments = [str(SIM), str(target)]
    assert round_checkpoint.main(arguments) == 0
    assert str(target) in capsys.readouterr().out
    before, after = tensors_of(SIM), tensors_of(target)
    assert before.keys() == after.keys()
    for name, value in before.items():
        rounded = value.astype(ml_dtypes.bfloat16).astype("float32")
        np.testing.assert_array_equal(after[name], rounded)
        assert after[name].dtype == "float32"
    assert target.stat().st_size < 0.6 * SIM.stat().st_size
    with zipfile.ZipFile(target) as archive:
        assert {Path(name).parts[0] for name in archive.namelist()} == {target.stem}
    assert round_checkpoint.main(arguments) == 4
    assert round_checkpoint.main([*arguments, "--overwrite"]) == 0
    missing = [str(tmp_path / "none.zip"), str(tmp_path / "x.zip")]
    assert round_checkpoint.main(missing) == 2
    assert "error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [target]
