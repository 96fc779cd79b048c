"""Bad input that a command refuses before it starts a backend."""

import pytest
from cli_errors import WITHOUT_MODELS, check_error, fill_folder
from common import V2_EMBEDDING_SIZE, run_main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("errors"))


@pytest.mark.parametrize(("line", "code", "message"), WITHOUT_MODELS)
def test_an_error_is_one_line_with_a_code_and_leaves_nothing(
    line, code, message, folder, monkeypatch, capsys
):
    check_error(line, code, message, folder, monkeypatch, capsys)


def test_an_error_of_many_tensors_is_one_line_too(tmp_path, capsys):
    words = ("convert", V2_EMBEDDING_SIZE, tmp_path / "x")
    code, out, err = run_main(*words, "--model", "RoFormerMaskedLM", capsys=capsys)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "missing cls/predictions/output_mapping/kernel (24, 16)" in err
