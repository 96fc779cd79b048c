"""Whether other libraries still lack what `quirks` does in their place."""

import keras
import numpy as np
import pytest

from roformer_keras import quirks

# Owners, and the names that public ways would have; one that appears replaces a quirk.
MISSING = [
    (keras.Layer, ("flatten_layers", "nested_layers", "sublayers")),
    (keras.Layer, ("inbound_nodes", "nodes", "untrack_variable", "unlock_state")),
    (keras.Model, ("run_through_graph", "nodes_by_depth", "compile_loss")),
    (keras.Model, ("initial_epoch", "eval_epoch_iterator")),
    (keras.KerasTensor, ("keras_history", "history", "operation", "keras_mask")),
    (keras.layers.Dense, ("merge_lora", "merged_kernel", "stored_kernel")),
    (keras.optimizers.Adam, ("get_variable_index", "momentums", "velocities")),
    (keras.optimizers.Adam, ("trained_variables", "use_weight_decay")),
    (keras.optimizers.Adam, ("moving_averages", "learning_rate_schedule")),
    (keras, ("Functional", "data_adapters")),
    (keras.models, ("Functional",)),
    (keras.backend, ("learning_phase", "call_context", "get_keras_mask")),
    (keras.ops, ("get_keras_mask", "set_keras_mask")),
    (keras.distribution, ("distribute_data_input",)),
]


def test_other_libraries_have_no_public_way_yet():
    found = [
        f"{owner.__name__}.{name}"
        for owner, names in MISSING
        for name in names
        if hasattr(owner, name)
    ]
    assert found == []


def test_iterations_count_updates():
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    variable = keras.Variable(np.ones(2, "float32"))
    optimizer.build([variable])
    for _ in range(2):
        optimizer.apply([keras.ops.ones(2)])
    assert int(optimizer.iterations) == 1
    assert int(quirks.batch_count(optimizer)) == 2


def test_trainable_sets_all_layers():
    layer = keras.layers.Dense(1)
    layer.trainable = False
    model = keras.Sequential([keras.Input((2,)), layer])
    model.trainable = False
    with quirks.trainable_itself(model):
        assert model.trainable and not layer.trainable
    model.trainable = True
    assert layer.trainable


def test_a_built_layer_takes_no_state():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    with pytest.raises(ValueError, match="cannot add new elements"):
        layer.metric = keras.metrics.Mean()
    with quirks.adding_state(layer):
        layer.metric = keras.metrics.Mean()


def test_the_kernel_of_a_dense_layer_has_its_lora():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    layer.enable_lora(1)
    layer.lora_kernel_b.assign(np.ones((1, 2)))
    stored = np.array(quirks.stored_kernel(layer))
    assert np.abs(np.array(layer.kernel) - stored).max() > 0


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="other trainers drop it themselves"
)
def test_a_fit_that_was_interrupted_leaves_its_validation_data():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2, 1))

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(
            x,
            x,
            validation_data=(x, x),
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=stop)],
            verbose=0,
        )
    assert model._eval_epoch_iterator is not None
    quirks.forget_validation(model)
    assert model._eval_epoch_iterator is None
