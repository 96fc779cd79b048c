"""Bad input that a command refuses when it has a model, before the long work."""

import pytest
from cli_errors import WITH_MODELS, check_error, fill_folder
from common import CHARACTER, SMALL

from roformer_keras import RoFormerSentenceEncoder, RoFormerTextClassifier

pytestmark = pytest.mark.usefixtures("load_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = fill_folder(tmp_path_factory.mktemp("errors"))
    encoder = RoFormerSentenceEncoder.from_preset(CHARACTER, max_length=8)
    encoder.save_to_preset(folder / "ENCODER")
    classifier = RoFormerTextClassifier.from_preset(SMALL, classes=["好", "坏"])
    classifier.save_to_preset(folder / "CLASSES")
    return folder


@pytest.mark.parametrize(("line", "code", "message"), WITH_MODELS)
def test_an_error_is_one_line_with_a_code_and_leaves_nothing(
    line, code, message, folder, monkeypatch, capsys
):
    check_error(line, code, message, folder, monkeypatch, capsys)
