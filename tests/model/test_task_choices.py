"""Multiple choice: scores of choices, and which one is best."""

import keras
import numpy as np
import pytest
from finetuning_cases import load_small

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tasks.labels import choice_number
from roformer_keras.tasks.multiple_choice import ChoiceRows, RoFormerMultipleChoice

TEXTS = [
    ("她在北京工作。", "她在哪里？", ["北京", "上海"]),
    ("我们学习语言。", "学习什么？", ["天气", "人", "语言", "工作"]),
    ("今天天气不错。", "天气？", ["不好", "很好的天气", "工作"]),
    ("他在上海学习，她在北京。", "他在哪里？", ["北京", "天安门", "上海"]),
]
LABELS = [0, "语言", 1, 2]
NUMBERS = np.array([0, 2, 1, 2])
# As the first, with more choices.
MANY = (*TEXTS[0][:2], [*TEXTS[0][2], *["天气"] * 38])
MASKED = f"我们{'[MASK]' * 2}学习，你们不学习。"


def new_model(**options):
    keras.utils.set_random_seed(0)
    return load_small(RoFormerMultipleChoice, **options)


@pytest.fixture(scope="module")
def model():
    return new_model()


def softmax(scores):
    powers = np.exp(scores.astype("float64") - scores.max())
    return powers / powers.sum()


def test_scores_are_those_of_each_choice_alone(model):
    """By the layers, on a row of ids that is written by hand."""
    rows_of_scores = model.predict(TEXTS, verbose=0)
    assert [len(scores) for scores in rows_of_scores] == [2, 4, 3, 3]
    tokenizer, kernel = model.tokenizer, np.array(model.get_layer("choice").kernel)
    for (context, *question, choices), scores in zip(
        TEXTS, rows_of_scores, strict=True
    ):
        assert scores.dtype == "float32"
        for choice, score in zip(choices, scores, strict=True):
            first = ["[CLS]", *context, "[SEP]"]
            second = [*"".join(question), *["[SEP]"] * len(question), *choice, "[SEP]"]
            ids = [tokenizer.token_to_id(token) for token in (*first, *second)]
            segments = [0] * len(first) + [1] * len(second)
            hidden = model.backbone(
                {"token_ids": np.array([ids]), "segment_ids": np.array([segments])}
            )
            expected = keras.ops.convert_to_numpy(hidden)[0, 0] @ kernel
            # The bias of a new head is 0.
            assert score == pytest.approx(expected.item(), abs=1e-5)


def test_probabilities_loss_and_accuracy(model):
    scores = model.predict(TEXTS, verbose=0)
    probabilities = model.choose(TEXTS, probabilities=True, verbose=0)
    chosen = model.choose(TEXTS, verbose=0)
    for own, row, best in zip(scores, probabilities, chosen, strict=True):
        np.testing.assert_allclose(row, softmax(own), atol=1e-6)
        assert best == own.argmax()
    # The order of the choices is no matter.
    turned = [(*row[:-1], row[-1][::-1]) for row in TEXTS]
    of_turned = model.choose(turned, probabilities=True, verbose=0)
    for shares, row in zip(of_turned, probabilities, strict=True):
        np.testing.assert_allclose(shares[::-1], row, atol=1e-6)
    losses = [-np.log(softmax(own)[n]) for own, n in zip(scores, NUMBERS, strict=True)]
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    for batch_size in (1, 3, 4):
        metrics = model.evaluate(
            TEXTS, LABELS, batch_size=batch_size, verbose=0, return_dict=True
        )
        assert metrics["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert metrics["accuracy"] == np.mean(chosen == NUMBERS)
    weights = np.array([1.0, 2.0, 0.0, 3.0])
    history = model.fit(TEXTS, LABELS, sample_weight=weights, verbose=0).history
    # Keras divides by the number of rows.
    assert history["loss"][0] == pytest.approx(np.mean(weights * losses), abs=1e-5)
    report = model.files.report(TEXTS, list(NUMBERS))
    assert report == {"rows": 4, "accuracy": np.mean(chosen == NUMBERS)}


def test_padding_changes_nothing(model):
    rows = model.make_rows([(*row[:-1], tuple(row[-1])) for row in TEXTS])
    ids = {
        name: np.pad(array, [(0, 0), (0, 0), (0, 3)])
        for name, array in rows.batch(np.arange(4)).items()
    }
    padded_scores = model.predict(ids, verbose=0)
    is_choice = np.arange(4) < rows.counts[:, None]
    assert (padded_scores[~is_choice] == -1e9).all() and (~is_choice).sum() == 4
    scores = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(
        padded_scores[is_choice], np.concatenate(scores), atol=1e-5
    )
    alone = model.predict(TEXTS, batch_tokens=1, verbose=0)
    np.testing.assert_allclose(np.concatenate(alone), np.concatenate(scores), atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate(list(model.predict(iter(TEXTS)))),
        np.concatenate(scores),
        atol=1e-5,
    )


def recording_model():
    """A model, and the shapes of the batches of its rows."""
    model, shapes = new_model(), []

    class Recorded(ChoiceRows):
        def batch(self, numbers):
            inputs = super().batch(numbers)
            shapes.append(inputs["token_ids"].shape)
            return inputs

    model.make_rows = lambda texts: Recorded(model.tokenizer, texts, 512)
    return model, shapes


def test_a_batch_has_no_more_tokens_than_asked_for():
    model, shapes = recording_model()
    expected = model.predict(TEXTS, batch_tokens=200, verbose=0)
    assert max(map(np.prod, shapes)) <= 200 and 1 < len(shapes) < len(TEXTS)
    # A row of many choices is computed alone, and the others as before.
    shapes.clear()
    rows_of_scores = model.predict([*TEXTS, MANY], batch_tokens=200, verbose=0)
    assert [shape[:2] for shape in shapes if shape[1] > 4] == [(1, 40)]
    assert len(shapes) < len(TEXTS) + 1
    *few, many = rows_of_scores
    np.testing.assert_allclose(*map(np.concatenate, (few, expected)), atol=1e-5)
    np.testing.assert_allclose(many[:2], few[0], atol=1e-5)
    assert len(many) == 40


@pytest.mark.slow
def test_batches_of_different_numbers_of_choices_are_learned_from():
    """The first two have as many, and Keras must not expect as many of the third."""
    texts, labels = [TEXTS[0], (f"{'天' * 9}", "天？", ["人", "天"]), MANY], [0, 1, 2]
    (model, shapes), alone = recording_model(), new_model()
    model.compile(keras.optimizers.SGD(0.0))
    alone.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    options = {"batch_size": 1, "shuffle": False, "verbose": 0}
    history = model.fit(texts, labels, **options).history
    losses = [
        alone.evaluate([row], [label], verbose=0, return_dict=True)["loss"]
        for row, label in zip(texts, labels, strict=True)
    ]
    assert history["loss"][0] == pytest.approx(np.mean(losses), abs=1e-5)
    assert {shape[1] for shape in shapes} == {2, 40}


def pieces(model, row, max_length):
    """Tokens of each choice, in segments."""
    rows = ChoiceRows(model.tokenizer, [row], max_length)
    batch = rows.batch([0])
    choices = []
    for ids, segments in zip(*(batch[name][0] for name in batch), strict=True):
        tokens = [model.tokenizer.id_to_token(number) for number in ids if number]
        count = len(tokens) - segments.sum()
        choices.append((tokens[:count], tokens[count:]))
        assert len(tokens) <= max_length
    return choices


def test_what_is_cut(model):
    row = ("她在北京工作，他在上海学习。", "他在哪里？", ("北京", "上海天安门"))
    short, long = pieces(model, row, 18)
    assert long[0] == short[0] == ["[CLS]", *"她在北京工作，", "[SEP]"]
    assert long[1] == [*"他在", "[SEP]", *"上海天安门", "[SEP]"]
    assert short[1] == [*"他在", "[SEP]", *"北京", "[SEP]"]
    # A choice that is too long, where no place is left for a question.
    (*_, long) = pieces(model, row, 8)
    assert long == (["[CLS]", "她", "在", "[SEP]"], [*"上海天", "[SEP]"])
    for length in range(4, 40):
        pieces(model, row, length)


def test_a_context_is_cut_around_its_blank(model):
    row = (f"{'天' * 30}{MASKED}{'人' * 30}", ("工作", "学习"))
    first, second = pieces(model, row, 16)[0]
    assert second == ["工", "作", "[SEP]"]
    assert (len(first), first[0], first[-1]) == (13, "[CLS]", "[SEP]")
    assert first[6:8] == ["[MASK]", "[MASK]"]
    for length in range(6, 90):
        for context in (row[0], MASKED, MASKED[::-1].replace("]KSAM[", "[MASK]")):
            ((first, _), _) = pieces(model, (context, row[1]), length)
            assert "[MASK]" in first


def test_labels_are_numbers_or_texts_of_choices():
    for label, choices, expected in (
        (1, ["甲", "乙"], 1),
        (1.0, ["甲", "乙"], 1),
        (np.int64(0), ["甲", "乙"], 0),
        ("乙", ["甲", "乙"], 1),
        (" 乙 ", ["甲", "乙 "], 1),
        ("1", ["甲", "乙"], 1),
        ("甲", ["甲", "甲"], 0),
        ("7", ["6", "7"], 1),
        (1, ["1", "2"], 1),
        ("0", ["0", "1"], 0),
    ):
        assert choice_number(label, choices) == expected
    for label, message in (
        (2, "from 0 to 1, or its text, got 2 in row 3"),
        (-1, "got -1 in row 3"),
        (0.5, r"got 0\.5 in row 3"),
        (float("nan"), "got nan in row 3"),
        (True, "got True in row 3"),
        (None, "got None in row 3"),
        ("丙", "got '丙' in row 3"),
        ("2", "got '2' in row 3"),
        ("", "got '' in row 3"),
        ([1], r"got \[1\] in row 3"),
        ("9" * 5000, "got '999"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            choice_number(label, ["甲", "乙"], 3)
    message = "'1' is the text of the choice 0, and the number of another .* in row 0"
    with pytest.raises(ConfigurationError, match=message):
        choice_number("1", ["1", "2"], 0)


def test_rows_that_cannot_be_used(model):
    for texts, labels, message in (
        (TEXTS, [0, 0, 0, 3], "from 0 to 2, or its text, got 3 in row 3"),
        ([("甲", ["乙"])], [0], "from 2 to 256 choices, got 1 in row 0"),
        ([("甲", [])], [0], "from 2 to 256 choices, got 0 in row 0"),
        ([("甲", "乙")], [0], "choices must be a list of texts, got '乙' in row 0"),
        ([("甲",)], [0], "must have 2 or 3 texts, choices counted as one, got 1"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.fit(texts, labels, verbose=0)
    with pytest.raises(ConfigurationError, match="has no classes of rows"):
        model.fit(TEXTS, LABELS, class_weight={0: 1.0}, verbose=0)
