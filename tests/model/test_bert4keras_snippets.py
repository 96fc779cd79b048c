"""`roformer_keras.bert4keras.snippets` with the answers of bert4keras's."""

import functools
import json
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
from common import ROOT, read_json, write_file

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.bert4keras import snippets
from roformer_keras.bert4keras.backend import keras
from roformer_keras.bert4keras.last_token import LastToken
from roformer_keras.bert4keras.models import build_transformer_model
from roformer_keras.data.generators import as_batches, as_inputs
from tools.reference.snippets import answers

GOLDEN = read_json(ROOT / "tests/data/bert4keras/snippets.json")
CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
}


def test_answers_of_snippets():
    ours, theirs = answers("roformer_keras.bert4keras")["snippets"], GOLDEN["snippets"]
    assert ours.keys() == theirs.keys()
    np.testing.assert_allclose(ours.pop("softmax"), theirs["softmax"], atol=1e-8)
    assert [name for name, answer in ours.items() if answer != theirs[name]] == []


def test_every_name_is_there():
    for name in snippets.__all__:
        assert hasattr(snippets, name), name
    assert snippets.keras is keras
    assert snippets.K is not None
    assert snippets.is_py2 is False
    assert snippets.basestring is str
    assert snippets.uniout is None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = snippets.no_such_name


def test_small_functions():
    assert snippets.strQ2B("ＡＢ，１２\u3000c。") == "AB,12 c。"
    assert snippets.convert_to_unicode("é".encode()) == "é"
    assert snippets.convert_to_str("é".encode("latin1"), "latin1") == "é"
    item = [1]
    assert snippets.is_one_of(item, [[1], item])
    assert not snippets.is_one_of(item, [[1]])
    assert snippets.to_array([1, 2]).tolist() == [1, 2]
    first, second = snippets.to_array([1], [[2]])
    assert (first.shape, second.shape) == ((1,), (1, 1))
    with pytest.raises(ConfigurationError, match="mode must be 'post' or 'pre'"):
        snippets.sequence_padding([[1]], mode="middle")


def test_arguments_of_methods():
    class Model:
        @snippets.insert_arguments(size=3, name="x")
        @snippets.delete_arguments("gone")
        def __init__(self, value, **others):
            self.value, self.others = value, others

    model = Model(1, size=5, more=2)
    assert (model.value, model.others) == (1, {"more": 2})
    assert (model.size, model.name) == (5, "x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'gone'"):
        Model(1, gone=2)


def test_open_reads_texts_and_bytes(tmp_path):
    path = tmp_path / "lines.txt"
    with snippets.open(path, "w", encoding="utf-8") as file:
        file.write("今天\r\n")
        file.write("b\n")
    with snippets.open(path, "rb") as file:
        assert file.readlines() == path.read_bytes().splitlines(keepends=True)
    for mode, first in (("r", "今天\n"), ("rb", "今天\r\n")):
        with snippets.open(path, mode, encoding="utf-8") as file:
            assert next(file) == first
            assert file.read() == "b\n"
            file.seek(0)
            assert list(file) == [first, "b\n"]
    path.write_bytes(b"a\xff\n")
    with snippets.open(path, "rb", encoding="utf-8", errors="ignore") as file:
        assert file.readline() == "a\n"
    with pytest.raises(ConfigurationError, match="withdrew indexable="):
        snippets.open(path, indexable=True)


# === Several processes ===


def test_parallel_threads():
    apply = functools.partial(
        snippets.parallel_apply, iterable=range(20), workers=3, max_queue_size=4
    )
    before = set(threading.enumerate())
    expected = [one * 2 for one in range(20)]
    assert apply(lambda x: 2 * x, dummy=True, unordered=False) == expected
    assert sorted(apply(lambda x: 2 * x, dummy=True)) == expected
    got = []
    assert apply(lambda x: 2 * x, dummy=True, callback=got.append) is None
    assert sorted(got) == expected
    pairs = snippets.parallel_apply_generator(str, "ab", 1, 1, dummy=True)
    assert sorted(pairs) == [(0, "a"), (1, "b")]
    with pytest.raises(ZeroDivisionError):
        apply(lambda x: 1 // x, dummy=True)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_parallel_processes():
    # In another process: this one has threads.
    code = (
        "import numpy as np\n"
        "from roformer_keras.bert4keras.snippets import parallel_apply\n"
        "draw = lambda x: (x, np.random.randint(10 ** 6))\n"
        "run = lambda: parallel_apply(draw, range(9), 1, 3, random_seeds=[4])\n"
        "first = run()\n"
        "assert first == run(), first\n"
        "assert [x for x, _ in first] == list(range(9))\n"
        "np.random.seed(4)\n"
        "assert first == [(x, np.random.randint(10 ** 6)) for x in range(9)]\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# === Batches ===


def varying_batches(widths, with_targets=True):
    for width in widths:
        token_ids = np.arange(4 * width).reshape(4, width) % 50
        inputs = [token_ids, np.zeros_like(token_ids)]
        yield inputs, np.full((4, 1), width % 2) if with_targets else None


@pytest.fixture
def classifier():
    token_ids = keras.Input((None,))
    segment_ids = keras.Input((None,))
    x = keras.layers.Embedding(50, 8)(token_ids)
    x = x + keras.layers.Embedding(2, 8)(segment_ids)
    x = keras.layers.Dense(2, activation="softmax")(x[:, 0])
    model = keras.models.Model([token_ids, segment_ids], x)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture
def without_graph(classifier):
    """A step takes longer to trace than a few batches to compute."""
    classifier.run_eagerly = True


def test_widths_may_differ_and_the_iterator_goes_on(classifier):
    taken = []

    def batches():
        for width in [5, 5, 7, 3, 9, 4, 6, 8, 2]:
            taken.append(width)
            yield from varying_batches([width])

    generator = batches()
    history = classifier.fit(generator, steps_per_epoch=3, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    classifier.fit_generator(generator, steps_per_epoch=1, verbose=0, workers=2)
    # Batches are read ahead, as in Keras 2, and none is lost between calls.
    remaining_batches = as_batches(generator).get_numpy_iterator()
    assert [inputs[0].shape[1] for inputs, _ in remaining_batches] == [8, 2]
    assert taken == [5, 5, 7, 3, 9, 4, 6, 8, 2]
    predicted = classifier.predict(
        (inputs for inputs, _ in varying_batches([3, 5, 4])), steps=3, verbose=0
    )
    assert predicted.shape == (12, 2)
    loss, _ = classifier.evaluate(varying_batches([3, 5]), steps=2, verbose=0)
    alone = [
        classifier.evaluate(*batch, verbose=0)[0] for batch in varying_batches([3, 5])
    ]
    np.testing.assert_allclose(loss, np.mean(alone), rtol=1e-5)


@pytest.mark.usefixtures("without_graph")
def test_without_workers_a_batch_is_read_when_it_is_needed(classifier):
    taken = []

    def batches():
        for width in [5, 7, 3, 9, 4, 6, 8, 2]:
            taken.append(width)
            yield from varying_batches([width])

    generator = batches()
    for steps in (2, 4):
        classifier.fit(generator, steps_per_epoch=2, verbose=0, workers=0)
        assert len(taken) == steps
    classifier.fit_generator(generator, steps_per_epoch=1, verbose=0, max_queue_size=1)
    # Then one batch is in the queue, and one waits for room.
    assert len(taken) <= 7


@pytest.mark.usefixtures("without_graph")
def test_a_target_may_have_the_name_of_its_layer(classifier):
    inputs, targets = next(varying_batches([5]))
    name = classifier.output_names[0]
    plain = classifier.evaluate(inputs, targets, verbose=0)
    assert classifier.evaluate(inputs, {name: targets}, verbose=0) == plain
    named = iter([(inputs, {name: targets})])
    assert classifier.evaluate(named, steps=1, verbose=0) == plain


@pytest.mark.usefixtures("without_graph")
def test_compile_settles_which_weights_are_trained(classifier):
    """A discriminator trains when a model of it, compiled later, leaves it alone."""
    before = classifier.get_weights()
    classifier.trainable = False
    x = keras.layers.Dense(2, activation="softmax")(classifier.outputs[0])
    later = keras.models.Model(classifier.inputs, x)
    later.compile("sgd", "sparse_categorical_crossentropy")
    later.fit(varying_batches([5]), steps_per_epoch=1, verbose=0)
    for one, other in zip(classifier.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    classifier.train_on_batch(*next(varying_batches([5])))
    for one, other in zip(classifier.get_weights(), before, strict=True):
        assert np.abs(one - other).max() > 0
    assert not classifier.trainable_variables
    assert len(later.trainable_variables) == 2


@pytest.mark.usefixtures("without_graph")
def test_inputs_may_be_lists_of_numbers(classifier):
    lists = [[[3, 4, 5], [6, 7, 8]], [[0, 0, 1], [0, 1, 1]]]
    arrays = [np.array(one) for one in lists]
    expected = classifier.predict(arrays, verbose=0)
    np.testing.assert_array_equal(classifier.predict(lists, verbose=0), expected)
    assert as_inputs(arrays) is arrays


def test_other_data_stays():
    for data in ([1], {"a": 1}, np.ones(2), None):
        assert as_batches(data) is data
    with pytest.raises(ValueError, match="must yield at least one batch"):
        next(as_batches(iter(())).get_numpy_iterator())


def test_batches_are_tuples_of_arrays():
    rows = [[[1.0, 2.0]], [[3]]]
    for given, inputs, count in (
        ((rows, None), 2, 1),
        ((rows, None, [1]), 2, 1),
        ((rows, [1], [0.5]), 2, 3),
        (rows, 2, 1),
        (({"a": [1]}, [1]), 1, 2),
        (np.ones((2, 1)), None, 1),
    ):
        (batch,) = as_batches(iter([given])).get_numpy_iterator()
        assert isinstance(batch, tuple)
        assert len(batch) == count
        assert inputs is None or len(batch[0]) == inputs
        kinds = {str(x.dtype) for x in keras.tree.flatten(batch)}
        assert kinds <= {"float32", "int64"}


class Pairs(snippets.DataGenerator):
    def __iter__(self, random=False):
        batch = []
        for is_end, width in self.sample(random):
            batch.append(width)
            if len(batch) == self.batch_size or is_end:
                yield from varying_batches([max(batch)])
                batch = []


@pytest.mark.usefixtures("without_graph")
def test_generators_train_and_predict(classifier):
    samples = Pairs([3, 5, 4, 7, 2], batch_size=2)
    assert len(samples) == 3
    batches = samples.forfit()
    assert len(next(batches)) == 2
    classifier.fit(batches, steps_per_epoch=3, epochs=2, verbose=0)
    predicted = classifier.predict(samples.fortest(), steps=3, verbose=0)
    assert predicted.shape == (12, 2)
    with pytest.raises(ConfigurationError, match="must have a batch"):
        next(Pairs([]).forfit())
    with pytest.raises(NotImplementedError):
        iter(snippets.DataGenerator([1]))


def test_datasets():
    class Samples(snippets.DataGenerator):
        def __iter__(self, random=False):
            for _, width in self.sample(random):
                yield list(range(width)), width

    samples = Samples([3, 1, 2], batch_size=3)
    types_, shapes = ("float32", "int64"), ([None], [])
    batch, widths = next(iter(samples.to_dataset(types_, shapes, padded_batch=True)))
    assert batch.shape == (3, 3)
    assert sorted(widths.numpy()) == [1, 2, 3]
    named = samples.to_dataset(types_, shapes, ["ids", "width"], padded_batch=True)
    assert {name: x.shape.rank for name, x in next(iter(named)).items()} == {
        "ids": 2,
        "width": 1,
    }

    class Nested(snippets.DataGenerator):
        def __iter__(self, random=False):
            for _, value in self.sample(random):
                yield [value, value], [value]

    nested = Nested([4, 4], batch_size=2).to_dataset(
        (("int32", "int32"), ("int32",)), (((), ()), ((),)), [["a", "b"], ["c"]]
    )
    inputs, targets = next(iter(nested))
    assert inputs["b"].numpy().tolist() == targets["c"].numpy().tolist() == [4, 4]


# === Writing ===


def with_random_weights(model, seed=0):
    random = np.random.RandomState(seed)
    for weight in model.weights:
        shift = 1 if "gamma" in weight.path else 0
        weight.assign(random.normal(size=weight.shape) * 0.2 + shift)
    return model


@pytest.fixture
def config_path(tmp_path):
    path = tmp_path / "bert_config.json"
    write_file(path, CONFIG)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("application", "kind", "length"),
    [("lm", "roformer_v2", 6), ("unilm", "roformer", 100)],
)
def test_cached_steps_equal_whole_passes(config_path, application, kind, length):
    model = with_random_weights(
        build_transformer_model(config_path, model=kind, application=application)
    )
    last = LastToken(model)
    assert last.steps is not None
    random = np.random.RandomState(1)
    ids = random.randint(1, 50, size=(1, length))
    ids[0, 3] = 0
    segments = np.repeat([[0, 1]], length // 2, axis=1)
    # Rows repeated, dropped and reordered; past the room for 64 positions.
    picks = {0: [0] * 5, 3: [4, 0, 0, 2], 5: [3, 1], 6: [1, 0, 1]}
    for step in range(8 if length > 64 else 62):
        got = last.predict([ids, segments])
        whole = model([ids.astype("float32"), segments.astype("float32")])
        whole = keras.ops.convert_to_numpy(whole)
        np.testing.assert_allclose(got, whole[:, -1], atol=1e-5)
        pick = picks.get(step, range(len(ids)))
        drawn = random.randint(0, 50, size=(len(pick), 1))
        ids = np.concatenate([ids[pick], drawn], axis=1)
        segments = np.concatenate([segments[pick], np.ones_like(drawn)], axis=1)


# Ways to change the weights of a model between two tokens.
CHANGES = {
    "assign": lambda model: model.weights[0].assign(model.weights[0] * 1.5),
    "add to a part": lambda model: model.get_layer(
        "Embedding-Token"
    ).embeddings.value.scatter_nd_add([[3]], np.ones((1, 32), "float32")),
    "set_weights": lambda model: model.set_weights(
        [1.5 * x for x in model.get_weights()]
    ),
    "a layer's set_weights": lambda model: model.get_layer("MLM-Bias").set_weights(
        [np.arange(50) / 9]
    ),
    "load_weights": lambda model: model.load_weights("other.weights"),
}


@pytest.mark.slow
def test_the_last_token_follows_new_weights(config_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build_transformer_model(config_path, model="roformer", application="lm")
    with_random_weights(model, seed=3).save_weights("other.weights")
    with_random_weights(model)
    last = LastToken(model)
    ids = np.random.RandomState(1).randint(1, 50, size=(2, 6))
    for number, change in enumerate(CHANGES.values()):
        prompt = ids[:, : number + 1]
        before = last.predict([prompt, prompt * 0])
        change(model)
        for longer in (ids[:, : number + 2], prompt):
            got = last.predict([longer, longer * 0])
            whole = model([longer, longer * 0])
            whole = keras.ops.convert_to_numpy(whole)[:, -1]
            np.testing.assert_allclose(got, whole, atol=1e-5)
        assert np.abs(got - before).max() > 1e-3, list(CHANGES)[number]


def test_conditions_of_width_1(config_path):
    label = keras.Input((1,))
    condition = keras.layers.Embedding(2, 16)(label)
    condition = keras.layers.Reshape((16,))(condition)
    model = with_random_weights(
        build_transformer_model(
            config_path,
            model="roformer",
            application="lm",
            layer_norm_cond=condition,
            additional_input_layers=label,
        )
    )
    last = LastToken(model)
    assert last.steps is not None
    random = np.random.RandomState(1)
    ids, labels = random.randint(1, 50, size=(3, 5)), np.array([[0], [1], [1]])
    for step in range(6):
        inputs = [ids, np.zeros_like(ids), labels]
        whole = model([keras.ops.cast(x, "float32") for x in inputs])
        whole = keras.ops.convert_to_numpy(whole)
        np.testing.assert_allclose(last.predict(inputs), whole[:, -1], atol=1e-5)
        ids = np.concatenate([ids, random.randint(1, 50, size=(len(ids), 1))], axis=1)
        if step == 2:
            # The same rows as before, with another label.
            labels = 1 - labels


class Writer(snippets.AutoRegressiveDecoder):
    @snippets.AutoRegressiveDecoder.wraps(default_rtype="probas")
    def predict(self, inputs, output_ids, states):
        token_ids, segment_ids = inputs
        token_ids = np.concatenate([token_ids, output_ids], axis=1)
        segment_ids = np.concatenate([segment_ids, np.ones_like(output_ids)], axis=1)
        return self.last_token(self.model).predict([token_ids, segment_ids])


@pytest.mark.slow
def test_texts_follow_new_weights(config_path):
    model = build_transformer_model(config_path, model="roformer", application="unilm")
    writer = Writer(start_id=None, end_id=3, maxlen=8)
    writer.model = with_random_weights(model)
    prompt = [[2, 7, 9, 3], [0, 0, 0, 0]]

    def texts():
        np.random.seed(1)
        sampled = writer.random_sample(prompt, 4, topp=0.9)
        return [x.tolist() for x in [*sampled, writer.beam_search(prompt, 3)]]

    first = texts()
    assert first == texts()
    assert writer.last_token(model) is writer.last_token(model)
    with_random_weights(model, seed=3)
    second = texts()
    assert second != first
    # As without what was kept.
    writer.last_token(model).steps = None
    assert second == texts()


def test_last_token_of_any_model():
    inputs = keras.Input((None,))
    x = keras.layers.Embedding(9, 4)(inputs)
    model = keras.models.Model(inputs, keras.layers.LSTM(3, return_sequences=True)(x))
    last = LastToken(model)
    assert last.steps is None
    ids = np.array([[1, 2, 3]])
    expected = keras.ops.convert_to_numpy(model(ids))[:, -1]
    np.testing.assert_allclose(last.predict(ids), expected)
    np.testing.assert_allclose(last([ids]), expected)


# === A server ===


def test_server_needs_bottle(monkeypatch):
    monkeypatch.setitem(sys.modules, "bottle", None)
    with pytest.raises(ConfigurationError, match="pip install bottle"):
        snippets.WebServing()


def test_server_answers_json(monkeypatch):
    class Fields(dict):
        getunicode = dict.get

    routes = {}
    request = types.SimpleNamespace(GET=Fields(), POST=Fields())
    bottle = types.SimpleNamespace(
        request=request,
        route=lambda path, method: functools.partial(routes.__setitem__, path),
        run=lambda **options: routes.update(options),
    )
    monkeypatch.setitem(sys.modules, "bottle", bottle)
    web = snippets.WebServing(port=8001, server="wsgiref")
    arguments = {"text": (None, True), "n": (int, False)}
    web.route("/repeat", lambda text, n=1: [text] * n, arguments)
    assert json.loads(routes["/repeat"]())["code"] == 1
    request.GET.update(text="天", n="2")
    answer = json.loads(routes["/repeat"]())
    assert answer == {"code": 0, "desc": "succeeded", "data": ["天", "天"]}
    web.route("/fail", lambda text: 1 / 0, {"text": (None, True)}, method="POST")
    request.POST.update(text="a")
    assert json.loads(routes["/fail"]())["code"] == 2
    web.start()
    assert routes["port"] == 8001
