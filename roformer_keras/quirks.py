"""Uses of names of other libraries that are not public.

Each function says what is missing upstream and the versions that it was seen in.
`tests/model/test_quirks.py` fails when a public way appears, and when a private name is
used elsewhere.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Seen in Keras 3.15.1 unless a function says otherwise.

# === Keras: layers and graphs ===


def nested_layers(layer: Any) -> list[Any]:
    """The layers of a layer or a model at any depth, itself first.

    Keras: `Model.layers` has those of the first level, a `Layer` none.
    """
    return list(layer._flatten_layers())


def run_graph(model: Any, inputs: Any, replace: Callable) -> Any:
    """The outputs of a functional model whose layers are replaced by functions.

    Keras: `clone_model` replaces layers by layers only.

    Args:
        model: functional model.
        inputs: nested as the model takes them.
        replace: function from a layer to the function that stands for it.
    """
    return model._run_through_graph(inputs, operation_fn=replace)


def graph_nodes(model: Any) -> list[Any]:
    """The calls of layers in a functional model, see `calls_of`.

    Keras: a model does not tell its nodes.
    """
    return [node for nodes in model._nodes_by_depth.values() for node in nodes]


def calls_of(layer: Any) -> list[Any]:
    """The symbolic calls of a layer: nodes with `input_tensors`, `output_tensors`.

    Keras 2 has `get_output_at`; Keras 3 tells of a layer called once only.
    """
    return layer._inbound_nodes


def maker_of(tensor: Any) -> Any:
    """The layer or operation whose output a symbolic tensor is.

    Keras: a `KerasTensor` does not tell its history.
    """
    return tensor._keras_history.operation


def functional_class() -> type:
    """The class of `keras.Model(inputs, outputs)`.

    Keras: it has no public name, and a subclass of `keras.Model` becomes one by a
    change of its bases.
    """
    from keras.src.models.functional import Functional

    return Functional


def mask_of(tensor: Any) -> Any:
    """The mask that Keras has put on a tensor, or None.

    Keras: a layer gets it as `mask=`, which functions and models outside do not.
    """
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Puts a mask on a tensor, where layers of Keras look for it; see `mask_of`."""
    tensor._keras_mask = mask


def called_in_training() -> bool | None:
    """The `training` of the model whose call is running; None outside of a call.

    Keras: a function in a layer cannot ask; `keras.backend.learning_phase` of Keras 2
    is gone.
    """
    from keras.src.backend.common import global_state

    context = global_state.get_global_attribute("current_call_ctx")
    return None if context is None else bool(context.training)


# === Keras: weights ===


def stored_kernel(dense: Any) -> Any:
    """The kernel variable of a dense layer, without LoRA and in its own type.

    Keras: the property `kernel` adds LoRA and casts.
    """
    return dense._kernel


def merged_quantized_kernel(dense: Any) -> tuple[Any, Any, Any]:
    """Kernel, scale and zero point of a quantized dense layer with its LoRA added.

    Keras does this when it saves, and has no method to merge LoRA.
    """
    return dense._get_kernel_with_merged_lora()


def drop_variable(layer: Any, name: str) -> None:
    """Removes a variable from a layer.

    Keras: `del layer.name` collects garbage, which takes 0.6 s each.
    """
    layer._untrack_variable(getattr(layer, name))
    object.__delattr__(layer, name)


@contextlib.contextmanager
def adding_state(layer: Any) -> Iterator[None]:
    """While it lasts, a layer that is built takes new variables and metrics.

    Keras: a built layer refuses them, and only a call knows what a script adds.
    """
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


@contextlib.contextmanager
def trainable_itself(model: Any) -> Iterator[None]:
    """While it lasts, a model is trainable, and its layers are what they were.

    Keras: the property `trainable` sets all layers.
    """
    before = model._trainable
    model._trainable = True
    try:
        yield
    finally:
        model._trainable = before


# === Keras: optimizers ===


def batch_count(optimizer: Any) -> Any:
    """The variable that counts batches.

    Keras: `iterations` counts updates, of which an accumulation has fewer.
    """
    return optimizer._iterations


def place_of(optimizer: Any, variable: Any) -> int:
    """The number of a variable among those that an optimizer trains.

    Keras: momenta are lists, and nothing public finds those of a variable.
    """
    return optimizer._get_variable_index(variable)


def trained_variables(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for.

    Keras: `variables` are the optimizer's own.
    """
    return optimizer._trainable_variables


def moments_of(optimizer: Any, variable: Any) -> tuple[Any, Any, Any]:
    """First and second moment of Adam for a variable, and the largest second or None.

    Keras: they are in private lists.
    """
    place = place_of(optimizer, variable)
    largest = None
    if getattr(optimizer, "amsgrad", False):
        largest = optimizer._velocity_hats[place]
    return optimizer._momentums[place], optimizer._velocities[place], largest


def running_means(optimizer: Any) -> list[Any]:
    """The running means of weights that `use_ema` keeps, by trained variable.

    Keras: they can only be written over the weights.
    """
    return optimizer._model_variables_moving_average


def decays(optimizer: Any, variable: Any) -> bool:
    """True if the weights of a variable decay.

    Keras: `exclude_from_weight_decay` cannot be asked.
    """
    return optimizer._use_weight_decay(variable)


def schedule_of(optimizer: Any) -> Any:
    """The schedule or variable of the learning rate.

    Keras: the property `learning_rate` is a value.
    """
    return optimizer._learning_rate


# === Keras: loops ===


def forget_validation(model: Any) -> None:
    """Drops the validation data of a `fit` that was interrupted.

    Keras: the next `fit` evaluates on it.
    """
    model._eval_epoch_iterator = None


def first_epoch(model: Any) -> int | None:
    """The epoch at which a callback, such as BackupAndRestore, lets `fit` begin.

    Keras: the callback sets a private attribute of its model.
    """
    return model._initial_epoch


def set_first_epoch(model: Any, epoch: int | None) -> None:
    """Sets what `first_epoch` tells."""
    model._initial_epoch = epoch


def compiled_loss(model: Any) -> Any:
    """The loss of `compile`, or None.

    Keras: `model.loss` is what `compile` was given, which may be a name.
    """
    return model._compile_loss


def loss_of_batch(model: Any, **parts: Any) -> Any:
    """The loss of a batch, of a model with any `compute_loss`.

    Keras: scripts override `compute_loss` with fewer arguments, which it looks at.

    Args:
        model: compiled model.
        parts: `x`, `y`, `y_pred`, `sample_weight` and `training`.
    """
    return model._compute_loss(**parts)


def data_adapters() -> Any:
    """Keras's module of adapters, which read what `fit` is given; None if it moved.

    Keras: `fit` makes them itself, with a `tf.data` that waits for its tuning.
    """
    try:
        from keras.src.trainers import data_adapters
    except ImportError:
        return None
    names = ("data_adapter", "array_data_adapter", "get_data_adapter")
    has_names = all(hasattr(data_adapters, name) for name in names)
    return data_adapters if has_names else None


# === Other libraries ===


_lock = threading.Lock()
# Keras's function, once for each `distributing_batches` that lasts.
_originals: list[Callable] = []


@contextlib.contextmanager
def distributing_batches(distribute: Callable) -> Iterator[None]:
    """While it lasts, Keras on JAX puts batches on devices by another function.

    Keras splits each batch as the first one, and JAX refuses the odd last batch of a
    data set (IndivisibleError). Keras has no hook for this.

    Args:
        distribute: function of Keras's own function and of its arguments.
    """
    from keras.src.backend.jax import distribution_lib

    with _lock:
        original = (
            _originals[0] if _originals else distribution_lib.distribute_data_input
        )
        if not _originals:
            replacement = functools.partial(distribute, original)
            distribution_lib.distribute_data_input = replacement
        _originals.append(original)
    try:
        yield
    finally:
        with _lock:
            _originals.pop()
            if not _originals:
                distribution_lib.distribute_data_input = original


def jax_client() -> Any:
    """The store that the processes of a JAX program share.

    JAX 0.10: its public exchanges are computations on devices, which give up while the
    first process works for long.
    """
    from jax._src.distributed import global_state

    return global_state.client


def has_onednn() -> bool:
    """True if TensorFlow computes with oneDNN.

    TensorFlow 2.21: its own tests ask a private module.
    """
    try:
        from tensorflow.python.util import _pywrap_util_port as port

        return bool(port.IsMklEnabled())
    except (ImportError, AttributeError):
        return False


def openvino_backend() -> Any:
    """Keras's module for OpenVINO: types, and tensors that stand for a graph's.

    Keras: `ops` take nothing else, and compile no function.
    """
    from keras.src.backend.openvino import core

    return core


def forget_signals(server: Any) -> None:
    """Lets a server of uvicorn end with the exit code 0 after a signal.

    uvicorn 0.54 sends the signals that it has caught once more, which kills it.
    """
    server._captured_signals.clear()
