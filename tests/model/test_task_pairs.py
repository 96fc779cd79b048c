"""Vectors of sentences, and which of two texts a third is nearer to."""

import keras
import numpy as np
import pytest
from finetuning_cases import load_small

import roformer_keras
from roformer_keras import RoFormerBackbone, RoFormerTextClassifier
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tasks.finetuned import FinetunedTask
from roformer_keras.tasks.sentence_encoder import RoFormerSentenceEncoder
from roformer_keras.tasks.triplet_ranker import RoFormerTripletRanker

FIRST = ["今天天气不错", "她在北京", "我们学习语言", "你说的是这个人"]
SECOND = ["天气不", "在北京工作的人", "不是我们", "他们不学习"]
PAIRS = list(zip(FIRST, SECOND, strict=True))


def model_of(kind, **options):
    keras.utils.set_random_seed(0)
    return load_small(kind, **options)


def taught(model, x, y, rate=3e-3, epochs=25):
    model.compile(keras.optimizers.Adam(rate))
    model.fit(x, y, epochs=epochs, verbose=0)
    return model


@pytest.fixture(scope="module")
def cosent():
    return taught(model_of(RoFormerSentenceEncoder), PAIRS, [3, 0, 2, 1])


@pytest.fixture(scope="module")
def ranker():
    triplets = [(*PAIRS[0], "人"), ("北京", "上海", "她在北京")] * 2
    return taught(model_of(RoFormerTripletRanker), triplets, ["B", "C", 0, 1]), triplets


def test_cosines_come_in_the_order_of_the_degrees(cosent):
    cosines = cosent.similarity(FIRST, SECOND, verbose=0)
    assert list(np.argsort(cosines)) == [1, 3, 2, 0]
    assert cosines.dtype == "float32"
    # They are products of the vectors, whatever else is in the batch.
    first, second = (cosent.encode(texts, verbose=0) for texts in (FIRST, SECOND))
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose((first * second).sum(axis=1), cosines, atol=1e-5)
    alone = cosent.encode(FIRST[:1], verbose=0, batch_tokens=1)
    np.testing.assert_allclose(alone[0], first[0], atol=1e-5)
    assert cosent.similarity(*PAIRS[0], verbose=0) == pytest.approx(
        cosines[0], abs=1e-5
    )
    np.testing.assert_allclose(cosent.predict(PAIRS, verbose=0), cosines, atol=1e-5)
    # And what the model itself puts out of both rows of each pair.
    rows = [text for pair in PAIRS for text in pair]
    outputs = keras.ops.convert_to_numpy(cosent(cosent.tokenizer(rows)))
    np.testing.assert_allclose(outputs, cosines, atol=1e-5)


def test_pairs_are_classified_by_name(tmp_path):
    model = model_of(
        RoFormerSentenceEncoder, objective="classification", classes=["异", "1", "同"]
    )
    labels = ["同", "异", "1", 2]
    taught(model, PAIRS, labels)
    loss, accuracy = model.evaluate(PAIRS, labels, verbose=0)
    assert accuracy == 1 and loss < 0.3
    model.save_to_preset(tmp_path / "preset")
    again = RoFormerSentenceEncoder.from_preset(tmp_path / "preset")
    assert again.classes == ["异", "1", "同"] and again.num_classes == 3
    rows = again.make_rows(PAIRS)
    np.testing.assert_array_equal(again.make_targets(labels, rows), [2, 0, 1, 2])
    with pytest.raises(ConfigurationError, match="got '2' in row 1"):
        again.make_targets(["同", "2", 0, 0], rows)


def test_texts_of_a_class_come_near_each_other():
    texts, classes = FIRST + SECOND, [0, 1, 0, 1, 1, 0, 1, 0]
    model = model_of(RoFormerSentenceEncoder, objective="contrastive")
    taught(model, texts, classes, epochs=40)
    vectors = model.encode(texts, verbose=0)
    cosines = vectors @ vectors.T
    is_same = np.equal.outer(classes, classes)
    np.fill_diagonal(cosines, np.nan)
    assert np.nanmin(cosines[is_same]) > np.nanmax(cosines[~is_same])


def to_eight_rows(array):
    return np.concatenate([array, np.repeat(array[-1:], 8 - len(array), axis=0)])


def test_triplets_are_ranked(ranker):
    model, triplets = ranker
    assert model.rank(triplets, verbose=0) == ["B", "C", "B", "C"]
    probabilities = model.rank(triplets, probabilities=True, verbose=0)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    # Three are six rows, which JAX fills up to eight.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "roformer_keras.inference.compiled_forward.fill_rows", to_eight_rows
        )
        filled = model.rank(triplets[:3], probabilities=True, verbose=0)
    np.testing.assert_allclose(filled, probabilities[:3], atol=1e-6)
    # The other way round it is the other way round.
    triplets = [(a, c, b) for a, b, c in triplets]
    swapped = model.rank(triplets, probabilities=True, verbose=0)
    np.testing.assert_allclose(swapped, probabilities[:, ::-1], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "row", "label"),
    [
        ("TextClassifier", {"num_classes": 2}, PAIRS[0], 1),
        ("TextRegressor", {}, PAIRS[0], 0.5),
        ("TripletRanker", {}, (*PAIRS[0], "人"), "B"),
        ("MultipleChoice", {}, ("她在哪里？", ["北京", "上海"]), 0),
        ("QuestionAnswerer", {"text_segment": 0}, ("谁？", "她在北京"), "她"),
    ],
)
def test_pairs_are_of_one_segment_where_a_model_has_no_other(kind, options, row, label):
    """As of tokenizers whose models have `type_vocab_size=1`."""
    source = load_small(RoFormerBackbone)
    backbone = RoFormerBackbone(source.config.replace(num_segments=1))
    kind = getattr(roformer_keras, f"RoFormer{kind}")
    model = kind(backbone, source.tokenizer, **options)
    found = model.predict([row], verbose=0)[0]
    data = model.labelled([row], [label])
    inputs, *_ = data.batch()
    assert not inputs["segment_ids"].any()
    outputs = keras.ops.convert_to_numpy(model(inputs))
    np.testing.assert_allclose(np.reshape(found, outputs.shape), outputs, atol=1e-5)
    model.fit([row], [label], verbose=0)


def test_a_second_text_needs_a_segment_where_attention_goes_by_it():
    config = load_small(RoFormerBackbone).config
    message = "num_segments must be at least 2, got 1"
    with pytest.raises(ConfigurationError, match=message):
        config.replace(attention="unilm", num_segments=1)


def test_options_that_break_a_rule():
    for options, message in (
        ({"objective": "cosine"}, "objective must be one of 'cosent'"),
        ({"num_classes": 2}, "are for the objective 'classification', got 'cosent'"),
        ({"objective": "classification"}, "pass 2 or more names"),
        ({"classes": ["同", "异"]}, "are for the objective 'classification'"),
        (
            {"objective": "classification", "classes": ["同", "同"]},
            "classes must be 2 different names",
        ),
        ({"scale": 0}, "scale must be a finite number above 0, got 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model_of(RoFormerSentenceEncoder, **options)


def test_labels_that_are_none(cosent, ranker):
    with pytest.raises(ConfigurationError, match="finite number, got nan in row 1"):
        cosent.fit(PAIRS, [0, float("nan"), 1, 2])
    with pytest.raises(ConfigurationError, match="must have 2 texts, got 1"):
        cosent.fit(FIRST, [0, 1, 2, 3])
    with pytest.raises(ConfigurationError, match="leave sample_weight out"):
        cosent.fit(PAIRS, [0, 1, 2, 3], sample_weight=[1, 2, 3, 4])
    # Nor does a loss of Keras weigh cosines, of which it takes the mean.
    other = model_of(RoFormerSentenceEncoder)
    other.compile(loss="mse")
    with pytest.raises(ConfigurationError, match="leave sample_weight out"):
        other.fit(PAIRS, [0, 1, 1, 0], sample_weight=[1, 2, 3, 4])
    model, triplets = ranker
    with pytest.raises(ConfigurationError, match=r"got 'A' in row 0"):
        model.fit(triplets, ["A"] * 4)
    with pytest.raises(ConfigurationError, match="must have 3 texts, got 2"):
        model.predict(PAIRS)


@pytest.mark.parametrize("count", [1, 2])
def test_rows_are_of_as_many_texts_as_were_learned(count, cosent):
    rows = {1: ("今天",), 2: PAIRS[0]}
    classifier = model_of(RoFormerTextClassifier, num_classes=2)
    learned = {one.name: {} for one in classifier.files.baselines(count)}
    tuned = FinetunedTask(classifier, "preset", count, learned=learned)
    tuned.check_rows([rows[count]])
    with pytest.raises(ConfigurationError, match="text"):
        tuned.check_rows([rows[3 - count]])
    sets = model_of(RoFormerTextClassifier, num_classes=2, multi_label=True)
    names = [one.name for one in sets.files.baselines(count)]
    # One that a program saved may answer either, and so do vectors.
    for other in (
        FinetunedTask(classifier, "preset", count),
        FinetunedTask(cosent, "preset", count, learned={}),
        # Its baselines are the same for both.
        FinetunedTask(sets, "preset", 1, learned=dict.fromkeys(names)),
    ):
        for row in rows.values():
            other.check_rows([row])
