"""Bad input that a command refuses when it has a model, before the long work."""

import pytest
from cli_errors import WITH_MODELS, check_error, fill_folder
from common import CHARACTER, SMALL

from roformer_keras import RoFormerSentenceEncoder, RoFormerTextClassifier
from roformer_keras.verbs import loading as sources


@pytest.fixture(scope="module", autouse=True)
def load_once():
    """Each model is loaded once."""
    cache = {}

    def cached(load):
        def found(*arguments, **options):
            key = (load, arguments, *options.items())
            if key not in cache:
                cache[key] = load(*arguments, **options)
            return cache[key]

        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "load_source", cached(sources.load_source))
        yield


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
