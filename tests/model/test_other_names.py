"""What users of other libraries type: their arguments, and one text."""

import numpy as np
import pytest
from common import CHARACTER

from roformer_keras import (
    RoFormerSentenceEncoder,
    RoFormerTextClassifier,
    RoFormerTextRegressor,
    RoFormerTokenClassifier,
)
from roformer_keras.base.errors import ConfigurationError


@pytest.mark.parametrize("name", ["num_labels", "klasses", "max_seq_length", "droput"])
def test_a_task_names_the_argument_that_was_meant(name):
    with pytest.raises(ConfigurationError, match=f"has no argument {name}") as caught:
        RoFormerTextClassifier.from_preset(CHARACTER, **{name: 2})
    assert any(x in caught.value.hint for x in ("classes=", "max_length=", "dropout="))
    assert "vocabulary_size" not in str(caught.value)


def test_encode_takes_the_arguments_of_sentence_transformers(sim, backbone):
    texts = ["今天", "天气不错"]
    encoder = RoFormerSentenceEncoder(backbone, backbone.tokenizer)
    for model in (sim, encoder):
        expected = model.encode(texts, verbose=0)
        found = model.encode(
            texts,
            batch_size=1,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ConfigurationError, match="no argument convert_to_tensor"):
        sim.encode(texts, convert_to_tensor=True)
    with pytest.raises(ConfigurationError, match="no argument max_lenght"):
        sim.encode(texts, max_lenght=5)
    assert np.linalg.norm(encoder.encode(texts[0], normalize_embeddings=False)) > 1.01


def test_one_text_has_one_answer(backbone):
    tokenizer = backbone.tokenizer
    classifier = RoFormerTextClassifier(backbone, tokenizer, classes=["坏", "好"])
    regressor = RoFormerTextRegressor(backbone, tokenizer)
    tagger = RoFormerTokenClassifier(backbone, tokenizer, labels=["x"])
    for answer in (
        classifier.predict,
        classifier.classify,
        regressor.predict,
        regressor.regress,
        tagger.predict,
        tagger.extract,
    ):
        np.testing.assert_array_equal(answer("今天"), answer(["今天"])[0])
    assert classifier.classify("今天", probabilities=True).shape == (2,)


def test_a_file_is_no_list_of_texts(backbone, sim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n今天,好\n", encoding="utf-8")
    classifier = RoFormerTextClassifier(backbone, backbone.tokenizer, num_classes=2)
    for model in (classifier, sim):
        model.compile()
        for file in ("rows.csv", str(path), path):
            with pytest.raises(ConfigurationError, match=r"got the file '.*rows") as e:
                model.fit(file)
            assert "`roformer-keras finetune`" in e.value.hint
    # Other words are a text.
    with pytest.raises(ConfigurationError, match="must be a list of str, got one"):
        sim.fit("rows")
