"""Bad input that a command refuses when it has a model, before the long work."""

import pytest
from cli_errors import check_error, fill_folder
from common import CHARACTER

from roformer_keras import RoFormerSentenceEncoder
from roformer_keras.cli import generate, similarity
from roformer_keras.tasks import sources as models

CASES = [
    ("verify SMALL --bert4keras .", 6, "there is no bert4keras package"),
    ("verify SMALL --reference no", 2, "there is no reference file no"),
    ("verify SMALL --published", 2, "nothing is published of"),
    ("verify SMALL --lengths 0", 2, "lengths must be 1 or more"),
    ("fill-mask --source GPT 今天", 2, "a text to fill must hold [MASK], got '今天'"),
    ("fill-mask --source V2 [MASK]", 3, "no mlm head"),
    ("fill-mask --source LM [MASK]", 2, "comes without a vocabulary"),
    ("embed --source LM texts", 2, "comes without a bert_config.json"),
    ("generate --source GPT blank", 2, "line 2 of blank: a prompt must hold text"),
    ("generate --source GPT strange", 2, "line 3 of strange: a prompt must have tok"),
    ("generate --source GPT long", 2, "line 2 of long: a prompt must be shorter tha"),
    ("generate --source GPT --text ''", 2, "text 1: a prompt must hold text, got"),
    ("generate --source GPT good --stop 今天", 2, "a stop token must be in the"),
    ("generate --source GPT good --min-length 999", 2, "line 1 of good: at least"),
    ("generate --source GPT good --min-length -1", 2, "error: min_length must be an"),
    ("paraphrase --source GPT good", 3, "no pooler head"),
    ("paraphrase --source SIM blank", 2, "line 2 of blank: a prompt must hold text"),
    ("paraphrase --source SIM long --max-length 64", 2, "line 2 of long: a prompt mus"),
    (
        *("paraphrase --source SIM good --masked-positions 2", 2),
        "line 2 of good: masked_positions must be integers from 1 to 1",
    ),
    ("similarity --source SIM --pair 今 ''", 2, "pair 1: a text to compare must "),
    ("similarity --source ENCODER --pair 你好 ' '", 2, "pair 1: a text must not be em"),
    (
        *("similarity --source ENCODER --pair 你好 好 --vocabulary good", 2),
        "leave --config and --vocabulary out",
    ),
]


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
        patch.setattr(generate, "load_model", cached(generate.load_model))
        for command in (models, similarity):
            patch.setattr(command, "load_sim", cached(models.load_sim))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = fill_folder(tmp_path_factory.mktemp("errors"))
    encoder = RoFormerSentenceEncoder.from_preset(CHARACTER, max_length=8)
    encoder.save_to_preset(folder / "ENCODER")
    return folder


@pytest.mark.parametrize(("line", "code", "message"), CASES)
def test_an_error_is_one_line_with_a_code_and_leaves_nothing(
    line, code, message, folder, monkeypatch, capsys
):
    check_error(line, code, message, folder, monkeypatch, capsys)
