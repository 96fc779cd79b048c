"""Relations: labels, GPLinker's loss and gradient by bert4keras, and what is found."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import CHARACTER, CHECKPOINTS, ROOT, load_golden
from finetuning_cases import load_small

from roformer_keras import RoFormerRelationExtractor, load_model
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tasks import Relation, Span
from roformer_keras.tasks.relation_extractor import MAX_ENTITIES, as_triples

POINTERS = ("entities", "heads", "tails")
TEXTS = ["她在北京大学学习", "李白写了静夜思。", "今天天气不错"]
LABELS = [
    [("她", "学校", "北京大学"), ("北京大学", "城市", "北京")],
    [("静夜思", "作者", "李白")],
    [],
]


# === Labels ===


def test_labels_in_any_form():
    text = "李白写了静夜思"
    expected = [("静夜思", "作者", "李白")]
    span = Span(4, 7, "subject", "静夜思", 1.0), Span(0, 2, "object", "李白", 1.0)
    duie = {"subject": "静夜思", "predicate": "作者", "object": {"@value": "李白"}}
    for labels in (
        expected,
        [["静夜思", "作者", " 李白"]],
        [{**duie, "object": "李白"}],
        [duie, duie],
        [Relation(span[0], "作者", span[1], 1.0)],
    ):
        assert as_triples(labels, text) == expected
    assert as_triples([], text) == []
    assert as_triples([("Nba", "是", "CBA")], "nBA不是cba") == [("Nba", "是", "CBA")]
    files = RoFormerRelationExtractor.files_class
    cell = json.dumps(expected)
    assert files.parse_label(cell, (text,), {}) == expected
    assert files.find_names([expected, [("甲", "乙", "丙")]], {}) == ["乙", "作者"]


def test_letters_that_become_two_in_lower_case():
    text = "İİ甲写了Abc"
    triples = [[("甲", "作者", "aBC")]] * 2
    files = RoFormerRelationExtractor.files_class(None)
    expected = files.expected_answers([(text,)] * 2, triples)
    (baseline,) = files.baselines(1)
    learned = baseline.fit([(text,)] * 2, expected)
    assert baseline.answer(learned, [("甲写Abc",)])[0] == [("甲", "abc", "作者")]


def test_labels_that_are_none():
    for labels, message in (
        ("静夜思", "must be a list of relations, got '静夜思' in row 7"),
        ({"subject": "静夜思"}, "must be a list of relations"),
        ([("静夜思", "李白")], r"must be \(subject, predicate, object\).* in row 7"),
        ([("静夜思", 3, "李白")], "must be"),
        ([{"subject": "静夜思", "object": "李白"}], "must be"),
        ([("静夜思", " ", "李白")], "must be"),
        ([("静夜思", "作者", "杜甫")], "in its text, got '杜甫' in row 7"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            as_triples(labels, "李白写了静夜思", 7)


# === As bert4keras ===


@pytest.fixture(scope="module")
def golden():
    return load_golden(ROOT / "tests" / "data" / "finetuning" / "relations.npz")


@pytest.fixture(scope="module")
def published(golden):
    """The model of the golden file."""
    arrays, metadata = golden
    model = RoFormerRelationExtractor.from_preset(
        CHECKPOINTS / f"{metadata['source']}.zip",
        labels=metadata["predicates"],
        head_dim=metadata["head_dim"],
        layer_norm_epsilon=metadata["layer_norm_epsilon"],
        dropout=0.0,
        attention_dropout=0.0,
    )
    for name in POINTERS:
        layer = model.get_layer(name)
        count = len(layer.weights)
        layer.set_weights([arrays[f"{name}/{at}"] for at in range(count)])
    return model


@pytest.mark.slow
def test_loss_and_gradient_equal_bert4keras(golden, published):
    arrays, metadata = golden
    data = published.labelled(metadata["texts"], metadata["triples"])
    inputs, targets = data.make_batch(range(len(metadata["texts"])))
    np.testing.assert_array_equal(inputs["token_ids"], arrays["token_ids"])
    loss = published.default_loss()
    scores = keras.ops.convert_to_numpy(published(inputs))
    expected = sum(arrays[f"{name}/loss"] for name in POINTERS)
    assert float(loss(targets, scores)) == pytest.approx(expected, abs=1e-4)
    assert expected > 20
    variables = [published.backbone.token_embedding.embeddings]
    expected = [arrays["embeddings/gradient"]]
    for name in POINTERS:
        for at, variable in enumerate(published.get_layer(name).weights):
            variables.append(variable)
            expected.append(arrays[f"{name}/gradient/{at}"])
    with tf.GradientTape() as tape:
        total = loss(targets, published(inputs, training=True))
    values = [variable.value for variable in variables]
    gradients = map(tf.convert_to_tensor, tape.gradient(total, values))
    for variable, found, value in zip(variables, gradients, expected, strict=True):
        assert np.abs(value).max() > 0.1, variable.path
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-4)


# === What is found ===


@pytest.fixture(scope="module")
def taught():
    keras.utils.set_random_seed(0)
    labels = ["作者", "城市", "学校"]
    model = load_small(RoFormerRelationExtractor, labels=labels, head_dim=16)
    model.compile(keras.optimizers.Adam(1e-2))
    model.fit(TEXTS, LABELS, epochs=60, verbose=0)
    return model


def found_by(model, texts=TEXTS, **options):
    rows = model.extract(texts, verbose=0, **options)
    for text, row in zip(texts, rows, strict=True):
        for span in (span for one in row for span in (one.subject, one.object)):
            assert span.text == text[span.start : span.end]
    return [
        [(one.subject.text, one.predicate, one.object.text) for one in row]
        for row in rows
    ]


@pytest.mark.slow
def test_relations_are_found(taught, tmp_path):
    assert [sorted(row) for row in found_by(taught)] == [sorted(row) for row in LABELS]
    assert found_by(taught, TEXTS[::-1], engine="keras") == found_by(taught)[::-1]
    report = taught.files.report([(text,) for text in TEXTS], LABELS)
    assert report["f1"] == 1 and report["classes"]["作者"]["count"] == 1
    loss, f1 = taught.evaluate(TEXTS, LABELS, verbose=0)
    assert f1 == 1 and loss < 2
    taught.save_to_preset(tmp_path / "preset")
    again = load_model(tmp_path / "preset")
    assert again.extract(TEXTS[0]) == taught.extract(TEXTS[0])
    (row,) = taught.files.to_json([(TEXTS[0],)])
    assert row["relations"][0] == taught.extract(TEXTS[0])[0].to_json()
    assert list(row["relations"][0]) == ["subject", "predicate", "object", "score"]


@pytest.mark.slow
def test_a_relation_is_scored_by_its_lowest_score(taught):
    """As the published script decodes: by sets, one pair at a time."""
    text = TEXTS[1]
    scores = keras.ops.convert_to_numpy(taught(taught.tokenizer([text])))[0]
    length, count = scores.shape[-1], len(taught.labels)
    ends = [(a, b) for a in range(1, length - 1) for b in range(a, length - 1)]
    expected = {}
    for sh, st in ends:
        for oh, ot in ends:
            for number, predicate in enumerate(taught.labels):
                four = [scores[0, sh, st], scores[1, oh, ot]]
                four += [scores[2 + number, sh, oh], scores[2 + count + number, st, ot]]
                if min(four) > 0:
                    expected[sh - 1, predicate, oh - 1] = min(four)
    found = taught.extract([text], verbose=0, engine="keras")[0]
    assert {
        (one.subject.start, one.predicate, one.object.start): one.score for one in found
    } == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_what_is_cut_off_or_part_of_a_token_is_not_learned(taught):
    text = "在ЖЖЖ年，ЖЖ是数"
    rows = taught.make_rows([(text,), ("她在北京大学",)])
    labels = [("жж", "作者", "数"), ("Ж", "作者", "数"), ("年", "作者", "ЖЖЖ")]
    targets = taught.make_targets([labels, [("她", "学校", "北京")]], rows)
    # "ЖЖ" is the fifth token, and part of the second.
    assert taught.tokenizer.offsets(text)[5] == (6, 8)
    assert [0, 5, 5] in targets[0].tolist() and len(targets[0]) == 8
    cut = load_small(RoFormerRelationExtractor, labels=["学校"], max_length=5)
    rows = cut.make_rows([("她在北京大学",)])
    assert len(cut.make_targets([[("她", "学校", "北京")]], rows)[0]) == 0
    assert len(cut.make_targets([[("她", "学校", "北")]], rows)[0]) == 4


@pytest.mark.slow
def test_an_untaught_model_combines_some_of_its_spans(taught):
    text = TEXTS[1] * 8
    rows = taught.make_rows([(text,)])
    length = int(rows.lengths[0])
    scores = np.random.default_rng(0).normal(size=(8, length, length))
    visible = rows.visible([0], length)[0]
    relations = taught._relations(scores, visible, rows, 0)
    starts = {(one.subject.start, one.subject.end) for one in relations}
    assert len(starts) == MAX_ENTITIES < length**2 / 8


@pytest.mark.slow
def test_wrong_predicates(taught):
    with pytest.raises(ConfigurationError, match=r"one of .* got '在' in row 1"):
        taught.fit(TEXTS[:2], [[], [("静夜思", "在", "李白")]])
    for labels in (None, "作者", [], ["作者", "作者"]):
        with pytest.raises(ConfigurationError, match="labels must be"):
            RoFormerRelationExtractor.from_preset(CHARACTER, labels=labels)
