"""Other libraries still lack what `quirks` does in their place.

A test that fails here says that a function of `quirks` may go.
"""

import ast
import functools
import gc
import importlib
import inspect
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import ROOT, output_of
from keras import ops

from roformer_keras.base import quirks

PACKAGE = ROOT / "roformer_keras"


def public_values(thing):
    """Values of the public names of an object, and results of its methods."""
    for name in dir(thing):
        if name.startswith("_"):
            continue
        try:
            value = getattr(thing, name)
        except Exception:
            # Such as a property of a layer that was called twice.
            continue
        yield value
        if isinstance(value, list | tuple):
            yield from value


def is_public(thing, wanted):
    """True if a public name of an object holds what a private one does."""
    return any(value is wanted for value in public_values(thing))


@pytest.fixture
def graph():
    """A functional model with a layer that is called twice."""
    x = keras.Input((2,))
    shared = keras.layers.Dense(2)
    return keras.Model(x, keras.layers.Add()([shared(x), shared(shared(x))]))


# === Layers and graphs ===


def test_a_layer_does_not_tell_the_layers_in_it():
    dense = keras.layers.Dense(1)
    outer = keras.layers.TimeDistributed(
        keras.layers.Bidirectional(keras.layers.GRU(1))
    )
    outer(keras.Input((None, 3, 2)))
    *_, innermost = quirks.nested_layers(outer)
    assert not is_public(outer, innermost)
    model = keras.Sequential([keras.Input((1,)), keras.Sequential([dense])])
    assert dense in quirks.nested_layers(model)
    assert not any(value is dense for value in model.layers)


def test_a_clone_takes_no_numbers(graph):
    x = np.ones((1, 2))
    outputs = quirks.run_graph(graph, x, lambda layer: lambda x: np.max(x))
    np.testing.assert_array_equal(outputs, 1)
    with pytest.raises(ValueError, match="KerasTensor"):
        keras.models.clone_model(
            graph, x, call_function=lambda layer, *args, **kwargs: np.max(args[0])
        )


def test_classes_of_graphs_are_not_public():
    functional, add = quirks.graph_classes()
    x = keras.Input((2,))
    assert type(quirks.maker_of(ops.add(x, x))) is add
    assert type(keras.Model(x, ops.add(x, x))) is functional
    for module in (keras, keras.ops, keras.layers, keras.models):
        assert not is_public(module, functional) and not is_public(module, add)


def test_a_graph_does_not_tell_its_calls(graph):
    shared = graph.layers[1]
    calls = quirks.calls_of(shared)
    assert len(calls) == 3 and not is_public(shared, calls[1])
    nodes = quirks.graph_nodes(graph)
    assert len(nodes) == 5 and not any(is_public(graph, node) for node in nodes)
    output = graph.outputs[0]
    assert isinstance(quirks.maker_of(output), keras.layers.Add)
    assert not is_public(output, quirks.maker_of(output))


def test_a_tensor_does_not_tell_its_mask():
    x = keras.layers.Embedding(3, 2, mask_zero=True)(keras.Input((None,)))
    mask = quirks.mask_of(x)
    assert mask is not None and not is_public(x, mask)
    quirks.set_mask(x, None)
    assert quirks.mask_of(x) is None


def test_a_function_in_a_layer_cannot_ask_whether_it_trains():
    seen = []

    class Asking(keras.Layer):
        def call(self, x):
            seen.append(quirks.called_in_training())
            return x

    Asking()(np.ones(1), training=True)
    assert (seen, quirks.called_in_training()) == ([True], None)
    names = {*dir(keras.backend), *dir(keras.config), *dir(keras.utils)}
    assert not any("phase" in name or "training" in name for name in names)


def test_a_tensor_does_not_tell_that_a_sigmoid_made_it():
    if keras.backend.backend() == "tensorflow":
        probability = keras.ops.sigmoid(keras.ops.zeros(2))
        assert quirks.is_sigmoid(probability)
        assert not quirks.is_sigmoid(probability + 0)
        logits = probability._keras_logits
        assert not is_public(probability, logits)


# === Weights ===


def test_removing_an_attribute_collects_garbage(monkeypatch):
    layers = [keras.layers.Dense(1), keras.layers.Dense(1)]
    for layer in layers:
        layer.build((None, 2))
    collections = []
    monkeypatch.setattr(gc, "collect", lambda *_: collections.append(1))
    quirks.drop_variable(layers[0], "bias")
    assert not collections
    del layers[1].bias
    assert collections
    assert [len(layer.weights) for layer in layers] == [1, 1]


def test_a_built_layer_takes_no_state():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    with pytest.raises(ValueError, match="cannot add new elements"):
        layer.metric = keras.metrics.Mean()
    with quirks.adding_state(layer):
        layer.metric = keras.metrics.Mean()


# === Optimizers ===


def test_steps_of_an_optimizer_have_no_public_names():
    """A subclass changes them by these names, which `apply` still calls."""
    called = []

    class Stepping(quirks.OptimizerSteps, keras.optimizers.SGD):
        def clip_gradients(self, grads):
            called.append("clip")
            return super().clip_gradients(grads)

        def decay_weights(self, variables):
            called.append("decay")
            super().decay_weights(variables)

        def move_means(self, variables):
            called.append("mean")
            super().move_means(variables)

    optimizer = Stepping(0.1, weight_decay=0.1, use_ema=True)
    variable = keras.Variable(np.ones(2, "float32"))
    optimizer.apply_gradients([(ops.ones(2), variable)])
    assert sorted(called) == ["clip", "decay", "mean"]
    assert optimizer.decays(variable)
    steps = ("clip_gradients", "apply_weight_decay", "use_weight_decay")
    assert not any(hasattr(keras.optimizers.SGD, name) for name in steps)


def test_a_configuration_forgets_what_does_not_decay():
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    variable = keras.Variable(np.ones(2), name="bias")

    def moves(optimizer):
        optimizer.apply_gradients([(ops.zeros(2), variable)])
        return bool(ops.any(variable != 1))

    assert not moves(quirks.new_optimizer(optimizer))
    assert moves(keras.optimizers.AdamW.from_config(optimizer.get_config()))


def test_an_optimizer_does_not_tell_the_place_of_a_variable():
    optimizer = keras.optimizers.Adam()
    variables = [keras.Variable(np.ones(2)), keras.Variable(np.ones(3))]
    optimizer.build(variables)
    assert [quirks.place_of(optimizer, x) for x in variables] == [0, 1]
    assert not any(is_public(optimizer, x) for x in variables)


# === Loops ===


def tiny():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_callback_sets_the_first_epoch_of_its_model(tmp_path):
    model, x = tiny(), np.ones((2, 1))
    quirks.set_first_epoch(model, 2)
    assert quirks.first_epoch(model) == 2
    assert model.fit(x, x, epochs=3, verbose=0).epoch == [2]
    text = inspect.getsource(keras.callbacks.BackupAndRestore)
    assert "self.model._initial_epoch =" in text


def test_keras_makes_its_adapters_itself():
    assert quirks.data_adapters() is not None
    names = ("get_data_adapter", "ArrayDataAdapter", "DataAdapter")
    public = (
        keras,
        keras.utils,
        keras.trainers if hasattr(keras, "trainers") else keras,
    )
    assert not any(hasattr(module, name) for module in public for name in names)
    seen = {}

    class Seeing(keras.Sequential):
        def evaluate(self, *args, **options):
            seen.update(options)
            return super().evaluate(*args, **options)

    model, x = Seeing([keras.Input((1,)), keras.layers.Dense(1)]), np.ones((2, 1))
    model.compile("sgd", "mse")
    model.fit(x, x, validation_data=(x, x), verbose=0)
    assert seen[quirks.IS_VALIDATION]


def test_keras_fixes_a_size_in_which_two_batches_agree():
    class Widths(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.ones((2, 1 + index // 2))

    get_data_adapter = quirks.data_adapters().get_data_adapter
    with pytest.raises(tf.errors.InvalidArgumentError, match="element of shape"):
        list(get_data_adapter(Widths()).get_tf_dataset())
    adapter = get_data_adapter(Widths())
    signature = tf.TensorSpec((None, None), "float64")
    quirks.set_signature(adapter, lambda batch: (signature,))
    widths = [x.shape[1] for (x,) in adapter.get_tf_dataset()]
    assert widths == [1, 1, 2]


def test_the_adapter_of_a_data_set_stays_for_ever():
    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return np.ones((2, 1)), np.ones((2, 1))

    data = Data()
    alive = weakref.ref(data)
    tiny().fit(data, verbose=0)
    del data
    gc.collect()
    assert alive() is not None


# === Other libraries ===

ON_JAX = """
import jax, keras, numpy as np
from roformer_keras.base import quirks

x = np.ones((9, 1), "float32")

def fits():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        model.fit(x, x, batch_size=8, verbose=0)
    except ValueError:
        return "refused"
    return "fits"

keras.distribution.set_distribution(
    keras.distribution.DataParallel(auto_shard_dataset=False)
)
print(fits())

def whole(original, batch, layout, *args, **kwargs):
    if len(batch) % 4 == 0:
        return original(batch, layout, *args, **kwargs)
    everywhere = jax.sharding.PartitionSpec()
    mesh = getattr(layout, "backend_layout", layout).mesh
    return jax.device_put(batch, jax.sharding.NamedSharding(mesh, everywhere))

with quirks.distributing_batches(whole), quirks.distributing_batches(whole):
    print(fits())
print(fits())
"""


def run(code, backend, **variables):
    variables["KERAS_BACKEND"] = backend
    return output_of("-c", code, cwd=ROOT, **variables).split()


@pytest.mark.slow
def test_jax_refuses_an_odd_last_batch():
    flags = "--xla_force_host_platform_device_count=4"
    assert run(ON_JAX, "jax", XLA_FLAGS=flags) == ["refused", "fits", "refused"]


def test_tensorflow_does_not_tell_whether_it_computes_with_onednn():
    tf = pytest.importorskip("tensorflow")
    assert isinstance(quirks.has_onednn(), bool)
    names = {*dir(tf.config), *dir(tf.sysconfig), *tf.sysconfig.get_build_info()}
    assert not any("mkl" in name.lower() or "onednn" in name.lower() for name in names)


def test_keras_merges_by_a_private_method():
    kinds = (keras.layers.Multiply, keras.layers.Maximum, keras.layers.Minimum)
    for kind in kinds:
        assert "_merge_function" in vars(kind)
    layer = type("Product", (kinds[0],), quirks.merging(keras.ops.multiply))()
    ones = np.ones((1, 2))
    assert np.asarray(layer([2 * ones, 3 * ones])).tolist() == [[6.0, 6.0]]


# === Names that are used elsewhere ===

FOREIGN = ("keras", "tensorflow", "jax", "torch", "uvicorn")


def is_foreign(cls):
    return cls.__module__.partition(".")[0] in FOREIGN


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


@functools.cache
def names_of_class(cls):
    """Private names of one class: its attributes, and what its methods set."""
    names = {*vars(cls)}
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {name for name in names if is_private(name)}
    names |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return {name for name in names if is_private(name)}


@functools.cache
def uses_of_class(cls):
    """Private names that the methods of one class use or define, of itself."""
    try:
        source = inspect.getsource(cls)
    except OSError:
        # A class that is made of a table.
        return {name for name in vars(cls) if is_private(name)}
    tree = ast.parse(inspect.cleandoc("\n" + source))
    used = {
        node.name for node in tree.body[0].body if isinstance(node, ast.FunctionDef)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner in ("self", "cls") or owner.startswith("super("):
                used.add(node.attr)
    return {name for name in used if is_private(name)}


def own_classes():
    """Classes of the package with a base of another library."""
    for file in PACKAGE.rglob("*.py"):
        # The last one changes which class Keras loads.
        if file.stem in ("__main__", "reference_process", "quirks"):
            continue
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts))
        for value in [*vars(module).values()]:
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield value


@pytest.mark.slow
def test_subclasses_leave_private_names_of_their_bases():
    wrong = set()
    count = 0
    for cls in own_classes():
        theirs = set().union(*map(names_of_class, filter(is_foreign, cls.__mro__)))
        count += bool(theirs)
        for base in cls.__mro__:
            if base.__module__.partition(".")[0] != "roformer_keras":
                continue
            if base.__module__ != quirks.__name__:
                private_uses = uses_of_class(base) & theirs
                wrong |= {
                    f"{base.__module__}.{base.__name__}: {x}" for x in private_uses
                }
    assert count > 40
    assert sorted(wrong) == []


def test_others_leave_private_names_of_keras():
    """Also those that a class of the package happens to have."""
    classes = [keras.KerasTensor, keras.Variable, keras.metrics.Mean]
    theirs = set().union(*map(names_of_class, classes))
    for cls in own_classes():
        theirs |= set().union(*map(names_of_class, filter(is_foreign, cls.__mro__)))
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        if file.stem == "quirks":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                name, owner = node.attr, ast.unparse(node.value)
                if owner in ("self", "cls") or owner.startswith("super("):
                    continue
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name, owner = node.value, "a string"
            else:
                continue
            if name in theirs:
                wrong.append(f"{file.name}:{node.lineno}: {name} of {owner}")
    assert wrong == []
