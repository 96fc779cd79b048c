"""Tasks on texts: fitting, answering, saving, and what may be wrong with labels."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import CHARACTER, SIM, V2, WORD
from finetuning_cases import ONE_BLOCK, assert_mean_of_adversarial_steps, load_small

from roformer_keras import RoFormerMaskedLM, tasks
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.optimizers import AdamW, layerwise_rates, make_optimizer
from roformer_keras.tasks.labels import sorted_names
from roformer_keras.tasks.text_classifier import RoFormerTextClassifier
from roformer_keras.tasks.text_regressor import RoFormerTextRegressor
from roformer_keras.tasks.vector import TextVector
from roformer_keras.text import rows as batches

GOOD = ["今天天气不错", "她在北京", "我们学习语言", "你说的是这个人"]
BAD = ["天气不", "在上海工作的人", "不是我们", "他们不学习"]
TEXTS, LABELS = GOOD + BAD, ["好"] * 4 + ["坏"] * 4
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def classifier(source=CHARACTER, seed=0, **options):
    keras.utils.set_random_seed(seed)
    options = {"classes": ["坏", "好"], "num_layers": 1, **NO_DROPOUT, **options}
    return RoFormerTextClassifier.from_preset(source, **options)


@pytest.fixture(scope="module")
def fitted():
    model = classifier()
    model.compile(keras.optimizers.Adam(3e-3))
    history = model.fit(TEXTS, LABELS, batch_size=4, epochs=12, verbose=0).history
    return model, history


def probabilities(model, texts=TEXTS, **options):
    return model.classify(texts, probabilities=True, verbose=0, **options)


# === Fitting and answering ===


@pytest.mark.slow
def test_it_learns_from_texts_and_names(fitted):
    model, history = fitted
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert model.classify(TEXTS, verbose=0) == LABELS
    loss, accuracy = model.evaluate(TEXTS, LABELS, verbose=0)
    assert accuracy == 1
    # What `evaluate` says is what the probabilities say.
    predicted = probabilities(model)
    of_labels = predicted[np.arange(8), [1] * 4 + [0] * 4]
    assert loss == pytest.approx(-np.log(of_labels).mean(), rel=1e-4)


@pytest.mark.slow
def test_answers_come_in_the_order_of_the_texts_whatever_the_batches(fitted):
    model, _ = fitted
    together = probabilities(model)
    assert together.dtype == "float32" and together.shape == (8, 2)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-6)
    for options in ({"batch_tokens": 1}, {"batch_tokens": 20}):
        np.testing.assert_allclose(probabilities(model, **options), together, atol=1e-5)
    np.testing.assert_allclose(
        probabilities(model, TEXTS[::-1]), together[::-1], atol=1e-5
    )


def test_any_checkpoint_will_do():
    for source in (WORD, SIM, V2):
        assert probabilities(classifier(source), TEXTS[:2]).shape == (2, 2)


class Batches(keras.utils.PyDataset):
    """Batches of texts and labels."""

    def __init__(self, size=4):
        super().__init__()
        self.size = size

    def __len__(self):
        return len(TEXTS) // self.size

    def __getitem__(self, number):
        part = slice(self.size * number, self.size * (number + 1))
        return np.array(TEXTS[part]), np.array(LABELS[part])


@pytest.mark.slow
def test_the_ways_to_give_data_are_one():
    model, numbers = classifier(), np.array([1] * 4 + [0] * 4)
    before, expected = model.get_weights(), None
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    unbatched = tf.data.Dataset.from_tensor_slices((TEXTS, numbers))
    batches = Batches(8)

    def generator():
        yield batches[0]

    steps = {"steps_per_epoch": 1, "validation_steps": 1, "batch_size": None}
    for x, y, options in (
        (TEXTS, LABELS, {}),
        (np.array(TEXTS), numbers, {}),
        (TEXTS, numbers.astype("float64"), {}),
        (unbatched, None, {"validation_data": unbatched.batch(4)}),
        (unbatched.batch(3), None, {}),
        (model.tokenizer(TEXTS), numbers, {}),
        (batches, None, {"batch_size": None}),
        (generator(), None, {**steps, "validation_data": generator()}),
        (None, None, {}),
    ):
        model.set_weights(before)
        if x is None:
            model.train_on_batch(*batches[0])
        else:
            options = {"batch_size": 8, "verbose": 0, **options}
            history = model.fit(x, y, **options).history
            assert ("val_loss" in history) == ("validation_data" in options)
        after = model.get_weights()
        expected = expected or after
        for value, other in zip(after, expected, strict=True):
            np.testing.assert_allclose(value, other, atol=1e-6)
    assert model.test_on_batch(*batches[0]) is not None


CASES = [
    ("TextClassifier", {"num_classes": 3}, 1),
    ("TextClassifier", {"num_classes": 3, "multi_label": True}, 2),
    ("TextRegressor", {"pooling": "mean"}, 1),
    ("TextRegressor", {"head_activation": "tanh"}, 2),
    ("SentenceEncoder", {}, 2),
    ("SentenceEncoder", {"objective": "contrastive"}, 1),
    ("SentenceEncoder", {"objective": "classification", "num_classes": 2}, 2),
    ("TripletRanker", {}, 3),
    ("TokenClassifier", {"labels": ["甲"]}, 1),
    ("TokenClassifier", {"labels": ["甲"], "crf": True}, 1),
    ("TokenClassifier", {"tags": ["n", "v"], "crf": True}, 1),
    ("SpanExtractor", {"labels": ["甲", "乙"], "head_dim": 8}, 1),
    ("RelationExtractor", {"labels": ["甲", "乙"], "head_dim": 8}, 1),
    ("QuestionAnswerer", {}, 2),
    ("MultipleChoice", {"pooling": "mean"}, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "count"), CASES)
def test_what_every_task_does(name, options, count, tmp_path):
    """Texts, ids and a call give the same outputs; a file gives the same model."""
    cls = getattr(tasks, f"RoFormer{name}")
    model = load_small(cls, **options)
    texts = [tuple(TEXTS[n : n + count]) for n in range(3)]
    if cls.has_choices:
        texts = [(*row, tuple(TEXTS[: n + 2])) for n, row in enumerate(texts)]
    ids = model.make_rows(texts).batch(np.arange(3))
    expected = keras.ops.convert_to_numpy(model(ids))
    model.compile(run_eagerly=True)
    outputs = model.predict(ids, batch_size=6, verbose=0)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    for outputs in (model.predict(texts, verbose=0), model.predict(iter(texts))):
        for unpadded, output in zip(outputs, expected, strict=True):
            # One window a text.
            unpadded = unpadded[0] if name == "QuestionAnswerer" else unpadded
            cut = tuple(map(slice, unpadded.shape))
            np.testing.assert_allclose(unpadded, output[cut], atol=1e-5)
            assert output[cut].size == output.size or None in model.output.shape[1:]

    # Keras saves no optimizer that has not been used.
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is cls
    assert again.preset_options() == model.preset_options()
    np.testing.assert_array_equal(again(ids), expected)
    # Compiled as it was.
    assert type(again.loss) is type(model.loss)


def test_pairs_are_rows_of_two_segments():
    model = classifier(num_classes=2, classes=None)
    predicted = probabilities(model, list(zip(GOOD, BAD, strict=True)))
    batch = model.tokenizer(GOOD, BAD)
    logits = keras.ops.convert_to_numpy(model(batch))
    np.testing.assert_allclose(predicted, keras.ops.softmax(logits), atol=1e-6)
    assert model.classify((GOOD, BAD), verbose=0) == list(logits.argmax(axis=1))


def test_several_labels():
    model = classifier(classes=["天", "学", "人"], multi_label=True, **ONE_BLOCK)
    labels = [[c for c in "天学人" if c in text] for text in TEXTS]
    assert [] in labels and len(labels[3]) == 1
    model.compile(run_eagerly=True)
    loss, _ = model.evaluate(TEXTS, labels, verbose=0)
    shares = probabilities(model)
    chosen = [
        [c for c, p in zip("天学人", row, strict=True) if p > 0.5] for row in shares
    ]
    assert model.classify(TEXTS, verbose=0) == chosen
    is_class = np.array([[c in row for c in "天学人"] for row in labels])
    assert loss == pytest.approx(
        -np.log(np.where(is_class, shares, 1 - shares)).mean(), rel=1e-4
    )


def test_several_labels_as_arrays_of_0_and_1():
    model = classifier(classes=["天", "学", "人"], multi_label=True)
    rows = model.make_rows([(text,) for text in TEXTS])
    targets = np.array([[c in text for c in "天学人"] for text in TEXTS])
    names = [[c for c in "天学人" if c in text] for text in TEXTS]
    expected = model.make_targets(names, rows)
    for given in (targets, targets.astype("int64"), list(targets.astype("float32"))):
        np.testing.assert_array_equal(model.make_targets(given, rows), expected)
    for given, message in (
        ([[0, 1, 0]], "must name each once, got .* in row 0: give 0 and 1"),
        (np.array([[0, 1, 2]]), "must be of 0 and 1, got .* in row 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.make_targets(given, rows)


def test_labels_that_may_be_numbers_of_classes_or_0_and_1():
    model = classifier(classes=["坏", "好"], multi_label=True)
    numbers = np.array([0, 1])
    for given, row in (
        ([[0, 1], [1, 0]], 0),
        ([["好"], (1.0, 0.0)], 1),
        # Two rows of a column of lists.
        ([np.array([0]), numbers], 1),
    ):
        message = rf"2 classes may be .* in row {row}: write np.array\(\[.* or \['"
        with pytest.raises(ConfigurationError, match=message):
            model.make_targets(given, None)
    for given in (np.array([[0, 1], [1, 1]]), [["好"], ["坏", "好"]], [[1], ["坏", 1]]):
        assert model.make_targets(given, None).tolist() == [[0, 1], [1, 1]]
    with pytest.raises(ConfigurationError, match=r"a label must be .* in row 0"):
        model.make_targets([[["好"]]], None)
    options = {"multi_label": True}
    with pytest.raises(ConfigurationError, match="each label is 0,1 or 1,0"):
        model.files.find_names([["0", "1"], ["1", "0"]], options)
    assert model.files.find_names([["0", "1"], ["0"]], options) == ["0", "1"]


def test_a_number_that_is_the_name_of_another_class():
    model = classifier(classes=["1", "0"])
    rows = model.make_rows([("好",), ("坏",)])
    with pytest.raises(ConfigurationError, match=r"1 is also the name of .* in row 0"):
        model.make_targets([1, 0], rows)
    assert model.make_targets(["1", "0"], rows).tolist() == [0, 1]
    in_order = classifier(classes=["0", "1"])
    assert in_order.make_targets([1, 0], rows).tolist() == [1, 0]
    # Integers that are the classes are names.
    assert classifier(classes=[1, 0]).make_targets([1, 0], rows).tolist() == [0, 1]


def test_regression():
    keras.utils.set_random_seed(0)
    model = load_small(RoFormerTextRegressor, pooling="mean")
    model.compile(keras.optimizers.Adam(1e-2), run_eagerly=True)
    degrees = [1, 0.1, 0.65, 0.2]
    scores = model.regress((GOOD, BAD), verbose=0)
    assert scores.shape == (4,)
    history = model.fit((GOOD, BAD), degrees, epochs=4, verbose=0).history
    # The first is of the model before its first update.
    assert history["loss"][0] == pytest.approx(np.mean((scores - degrees) ** 2), 1e-4)
    assert history["loss"][-1] < history["loss"][0]
    for labels, message in (
        ([1, float("nan"), 2, 3], "finite number, got nan in row 1"),
        (["much", 1, 2, 3], "must be a number"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.fit(GOOD, labels)


def test_the_mean_is_over_tokens_alone():
    model = RoFormerTextRegressor.from_preset(CHARACTER, pooling="mean", **NO_DROPOUT)
    inputs = model.tokenizer(["你", "今天天气不错"])
    hidden = keras.ops.convert_to_numpy(model.backbone(inputs))
    vector = keras.Model(model.input, model.get_layer("vector").output)
    means = keras.ops.convert_to_numpy(vector(inputs))
    np.testing.assert_allclose(means[0], hidden[0, :3].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(means[1], hidden[1].mean(axis=0), atol=1e-6)


# === Saving ===


@pytest.mark.slow
def test_a_task_is_saved_with_its_optimizer_and_is_a_source(fitted, tmp_path):
    model, _ = fitted
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.iterations == model.optimizer.iterations
    # It is compiled as before, and can be trained further.
    again.run_eagerly = True
    again.fit(TEXTS, LABELS, verbose=0)
    again.compile(make_optimizer(1e-3), run_eagerly=True)
    # Keras saves no optimizer that has not been used.
    again.optimizer.build(again.trainable_variables)
    again.save(tmp_path / "again.keras")
    other = keras.models.load_model(tmp_path / "again.keras")
    for one in (again, other):
        assert not one.optimizer._use_weight_decay(one.get_layer("classes").bias)
    model.save_to_preset(tmp_path / "preset")
    with pytest.raises(OSError, match="exists: choose another name"):
        model.save_to_preset(tmp_path / "preset")
    model.save_to_preset(tmp_path / "preset", overwrite=True)
    other = RoFormerTextRegressor.from_preset(tmp_path / "preset", max_length=20)
    assert other.max_length == 20
    for value, same in zip(
        other.backbone.get_weights(), model.backbone.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(value, same)


# === Labels and options that are wrong ===


def test_labels_and_options_that_break_a_rule(fitted):
    for labels, message in (
        (["好"] * 7, "a label for each row, got 8 rows and 7 labels"),
        (["好"] * 7 + ["差"], r"or a name of \['坏', '好'\], got '差' in row 7"),
        ([0, 1, 2, 0, 0, 0, 0, 0], "from 0 to 1, or a name .*, got 2 in row 2"),
        ([-1] * 8, "got -1 in row 0"),
        ([0.5] * 8, "got 0.5 in row 0"),
        ([True] * 8, "got True in row 0"),
        ([None] * 8, "got None in row 0"),
        (None, "need labels"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            fitted[0].fit(TEXTS, labels)
    for options, message in (
        ({"classes": None}, "pass 2 or more names as classes="),
        ({"classes": ["好"]}, "at least 2, got 1"),
        ({"num_classes": 3}, "classes must be 3 different names"),
        ({"classes": ["好", "好"]}, "must be 2 different names"),
        ({"pooling": "median"}, "pooling must be one of 'first', .*, got 'median'"),
        ({"max_length": 3}, "max_length must be an integer from 4 to 1048576, got 3"),
        ({"num_layer": 3}, "num_layer"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            classifier(**options)


def test_other_errors_say_what_to_do(fitted):
    model, _ = fitted
    endless = tf.data.Dataset.from_tensor_slices((TEXTS, [0] * 8)).repeat()
    with pytest.raises(ConfigurationError, match="leave repeat"):
        model.fit(endless)
    with pytest.raises(ConfigurationError, match="pairs of texts and labels"):
        model.fit(tf.data.Dataset.from_tensor_slices(TEXTS))
    with pytest.raises(ConfigurationError, match="batch_size must be an integer"):
        model.fit(TEXTS, LABELS, batch_size=0)
    with pytest.raises(ConfigurationError, match="texts on both sides"):
        model.fit(TEXTS, LABELS, validation_split=0.01)
    with pytest.raises(ConfigurationError, match="that is not empty"):
        model.fit(["好", ""], [0, 1])
    with pytest.raises(ConfigurationError, match="at least 0, got -1"):
        model.compile(r_drop=-1)
    other = classifier(seed=1)
    for loss in (
        "sparse_categorical_crossentropy",
        keras.losses.SparseCategoricalCrossentropy(),
    ):
        with pytest.raises(ConfigurationError, match="are logits, and the loss"):
            other.compile("adam", loss)
    other.compile(r_drop=1.0)
    with pytest.raises(ConfigurationError, match="which needs texts"):
        other.fit(other.tokenizer(TEXTS), np.array([0] * 8))


def test_datasets_of_texts(fitted):
    """To answer and to evaluate; those to learn from are above."""
    model, _ = fitted
    expected = probabilities(model)
    texts = tf.data.Dataset.from_tensor_slices(TEXTS)
    labels = tf.data.Dataset.from_tensor_slices([1] * 4 + [0] * 4)
    labelled = tf.data.Dataset.zip((texts, labels))
    for dataset in (texts, texts.batch(3), labelled, labelled.batch(3)):
        np.testing.assert_allclose(probabilities(model, dataset), expected, atol=1e-6)
    logits = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(model.predict(Batches(), verbose=0), logits, atol=1e-6)
    expected = model.evaluate(TEXTS, LABELS, verbose=0)
    for dataset in (labelled, labelled.batch(3)):
        assert model.evaluate(dataset, verbose=0) == pytest.approx(expected, rel=1e-4)


def test_batch_size_of_answers(fitted, monkeypatch):
    model, _ = fitted
    expected, sizes = probabilities(model), []

    def counted(model, inputs, engine):
        sizes.append(len(inputs["token_ids"]))
        return run_model(model, inputs, engine)

    monkeypatch.setattr("roformer_keras.tasks.task.run_model", counted)
    predicted = probabilities(model, batch_size=3)
    np.testing.assert_allclose(predicted, expected, atol=1e-6)
    assert sizes == [3, 3, 2]


def test_answers_to_a_stream_come_one_by_one(fitted, monkeypatch):
    model, _ = fitted
    monkeypatch.setattr(
        "roformer_keras.text.rows.windows", functools.partial(batches.windows, size=3)
    )
    expected, read = probabilities(model), []

    def stream():
        for text in TEXTS:
            read.append(text)
            yield text

    predicted = probabilities(model, stream())
    np.testing.assert_allclose(next(predicted), expected[0], atol=1e-6)
    assert len(read) == 6
    np.testing.assert_allclose(list(predicted), expected[1:], atol=1e-6)
    assert list(probabilities(model, iter([]))) == []
    with pytest.raises(ConfigurationError, match=r"got None in row 1"):
        list(probabilities(model, iter(["好", None])))


def test_a_bar_is_for_long_jobs_before_a_terminal(fitted, capsys):
    model, _ = fitted
    model.predict(TEXTS)
    assert capsys.readouterr().err == ""
    model.predict(TEXTS, verbose=1)
    assert "8/8" in capsys.readouterr().err


# === Aids ===


def trained(epochs=1, optimizer=None, num_layers=1, **aids):
    model = classifier(num_layers=num_layers)
    model.compile(optimizer or keras.optimizers.SGD(0.1), run_eagerly=True, **aids)
    model.fit(TEXTS, LABELS, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model


@pytest.mark.slow
def test_adversarial_steps_are_made_at_moved_embeddings():
    """One step, by hand: gradient, move, step, move back."""
    epsilon = 0.7
    adversarial = trained(adversarial_epsilon=epsilon)
    model = classifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    inputs, labels = model.tokenizer(TEXTS), np.array([1] * 4 + [0] * 4)
    variables = model.trainable_variables
    table = model.backbone.token_embedding.embeddings

    def gradients():
        with tf.GradientTape() as tape:
            value = loss(labels, model(inputs, training=True))
        computed = tape.gradient(value, [variable.value for variable in variables])
        return [tf.convert_to_tensor(gradient) for gradient in computed]

    table_number = next(n for n, variable in enumerate(variables) if variable is table)
    gradient = gradients()[table_number]
    move = epsilon * gradient / tf.norm(gradient)
    assert float(tf.norm(move)) == pytest.approx(epsilon, 1e-5)
    table.assign_add(move)
    for variable, gradient in zip(variables, gradients(), strict=True):
        variable.assign_sub(0.1 * gradient)
    table.assign_sub(move)
    for mine, theirs in zip(variables, adversarial.trainable_variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=2e-6)
    # And it is not the plain step.
    plain = trained()
    assert not np.allclose(
        plain.get_layer("classes").kernel,
        adversarial.get_layer("classes").kernel,
        atol=1e-5,
    )


@pytest.mark.slow
def test_means_are_of_weights_that_are_not_moved():
    assert_mean_of_adversarial_steps(classifier())


def test_adversarial_training_needs_embeddings_that_move():
    model = classifier()
    model.backbone.trainable = False
    model.compile(keras.optimizers.SGD(0.1), adversarial_epsilon=1.0)
    with pytest.raises(ConfigurationError, match="which are frozen"):
        model.fit(TEXTS, LABELS, verbose=0)


@pytest.mark.slow
def test_r_drop_is_a_divergence_of_two_passes():
    model = classifier()
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 5, 2)).astype("float32")

    def softmax(x):
        return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)

    p, q = softmax(first), softmax(second)
    expected = (p * np.log(p / q)).sum(axis=-1) + (q * np.log(q / p)).sum(axis=-1)
    divergences = keras.ops.convert_to_numpy(model.divergence(first, second))
    np.testing.assert_allclose(divergences, expected, rtol=1e-4)
    # Without dropout both passes are one, and the step that of each row twice.
    for one, other in zip(trained(r_drop=4.0).weights, trained().weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    # With dropout they differ, and the divergence is minimised too.
    keras.utils.set_random_seed(0)
    model = RoFormerTextClassifier.from_preset(
        CHARACTER, num_classes=2, dropout=0.5, num_layers=1
    )
    model.compile(keras.optimizers.SGD(0.0), r_drop=40.0, run_eagerly=True)
    numbers = [1] * 4 + [0] * 4
    with_r_drop = model.fit(TEXTS, numbers, batch_size=8, verbose=0).history["loss"][0]
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    plain = model.fit(TEXTS, numbers, batch_size=8, verbose=0).history["loss"][0]
    assert with_r_drop > plain + 0.01


@pytest.mark.slow
def test_rates_fall_from_the_head_to_the_embeddings():
    rates = layerwise_rates(2, 0.5)
    optimizer = AdamW(1e-2, weight_decay=0.1, rates=rates)
    before = classifier(num_layers=2)
    layered = trained(optimizer=optimizer, num_layers=2)
    whole = trained(optimizer=AdamW(1e-2, weight_decay=0.1), num_layers=2)
    factors = {
        "token_embedding/": 0.125,
        "segment_embedding/": 0.125,
        "embedding_norm/": 0.125,
        "transformer_layer_0/": 0.25,
        "transformer_layer_1/": 0.5,
        "classes/": 1,
    }
    seen = set()
    for start, slow, fast in zip(
        before.trainable_variables,
        layered.trainable_variables,
        whole.trainable_variables,
        strict=True,
    ):
        (name,) = [part for part in factors if part in start.path]
        seen.add(name)
        start, slow, fast = (np.array(one) for one in (start, slow, fast))
        np.testing.assert_allclose(
            slow - start, factors[name] * (fast - start), atol=2e-6, err_msg=name
        )
    assert seen == set(factors)
    assert layerwise_rates(2, 1) == {}
    with pytest.raises(ConfigurationError, match=r"number in \(0, 1\], got 0"):
        layerwise_rates(2, 0)
    again = AdamW.from_config(optimizer.get_config())
    assert again.rates == rates


def test_a_mean_leaves_out_padding_but_not_the_first_position():
    hidden = np.arange(6, dtype="float32").reshape(1, 3, 2)
    means = TextVector("mean")(hidden, np.array([[0, 7, 0]]))
    np.testing.assert_allclose(means, [[1.0, 2.0]])


@pytest.mark.slow
def test_keras_writes_events_for_tensorboard(tmp_path):
    """The extra `train` brings what Keras's callback needs."""
    events = keras.callbacks.TensorBoard(tmp_path)
    classifier().fit(TEXTS[:4], LABELS[:4], callbacks=[events], verbose=0)
    assert list(tmp_path.glob("train/events*"))


def test_a_model_is_copied_by_its_configuration():
    """Keras's `clone_model` makes a plain `Functional` of every functional model."""
    model = classifier()
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    expected = model.predict(TEXTS[:2], verbose=0)
    np.testing.assert_array_equal(copy.predict(TEXTS[:2], verbose=0), expected)


def test_a_language_model_refuses_labels_and_streams():
    model = RoFormerMaskedLM.from_preset(CHARACTER)
    for method in (model.fit, model.evaluate):
        with pytest.raises(
            ConfigurationError, match=r"without labels .* got a Batches"
        ):
            method(Batches())
        with pytest.raises(ConfigurationError, match="which ends after one epoch"):
            method(iter(TEXTS))


@pytest.mark.slow
def test_a_task_that_is_not_compiled_learns_and_answers_by_batch():
    model = classifier()
    assert model.train_on_batch(TEXTS[:4], LABELS[:4]) is not None
    expected = model.predict(TEXTS[:4], verbose=0)
    np.testing.assert_array_equal(model.predict_on_batch(TEXTS[:4]), expected)


def test_a_generator_without_labels_is_refused():
    with pytest.raises(ConfigurationError, match="must give pairs of texts and labels"):
        classifier().fit(iter([TEXTS]))


def test_names_of_many_digits_are_sorted_as_texts():
    assert sorted_names(["10", "9"]) == ["9", "10"]
    long = "1" * 5000
    assert sorted_names([long, "9", "2"]) == [long, "2", "9"]


def test_answers_have_the_type_of_the_classes(tmp_path):
    """Also in JSON and after a preset; labels of one-hot give the same loss."""
    for classes, given in (
        ([0, 1], np.eye(2)[[1, 0]]),
        ([False, True], [True, False]),
        (["0", "1"], [[0, 1], [1, 0]]),
        (None, [True, False]),
    ):
        model = classifier(classes=classes, num_classes=2)
        known = [0, 1] if classes is None else classes
        labels = [known[1], known[0]]
        model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
        losses = [model.evaluate(TEXTS[:2], y, verbose=0)[0] for y in (given, labels)]
        assert losses[0] == losses[1]
        model.save_to_preset(tmp_path / "preset", overwrite=True)
        loaded = RoFormerTextClassifier.from_preset(tmp_path / "preset")
        for one in (model, loaded):
            (answer,) = one.classify(TEXTS[:1], verbose=0)
            assert (type(answer), answer in known) == (type(known[0]), True)
            (line,) = one.files.to_json([(TEXTS[0],)])
            names = list(line["probabilities"])
            assert names == [str(name).lower() for name in known]
            if classes is not None:
                assert type(line["label"]) is type(known[0])
            else:
                assert line["label"] in names
