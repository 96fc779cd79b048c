"""Uses of private names of other libraries.

Each function states what upstream lacks, and in which versions.
`tests/model/test_quirks.py` fails when a public way appears, and when other code uses
a private name.
"""

import contextlib
import dis
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from roformer_keras.base.types import TensorLike, Unchecked

if TYPE_CHECKING:
    import keras

# A mixin calls methods of the Keras class that it is mixed into.
KerasClass: Any = object

# === Python ===


def is_import_from() -> bool:
    """True while `from module import name` asks the module for the name.

    On Python 3.13, `import` replaces the message of the module's AttributeError unless
    this function recognizes it.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(3):
        if frame is None or frame.f_code.co_name == "_handle_fromlist":
            return frame is not None
        if frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]:
            return True
        frame = frame.f_back
    return False


# Each quirk was seen in Keras 3.15.1 unless its function states another version.

# === Keras: layers and graphs ===


def nested_layers(layer: "keras.Layer") -> "list[keras.Layer]":
    """The layers of a layer or a model at any depth, itself first.

    Keras: `Model.layers` has only the first level; a `Layer` has no such attribute.
    """
    return list(layer._flatten_layers())


def graph_classes() -> tuple[type, type]:
    """The classes of a functional model, and of `keras.ops.add` in its graph.

    Keras: only functions that make their objects are public.
    """
    from keras.src.models.functional import Functional
    from keras.src.ops.numpy import Add

    return Functional, Add


def run_graph(
    model: "keras.Model", inputs: TensorLike, replace: Callable[..., TensorLike]
) -> TensorLike:
    """The outputs of a functional model whose layers are replaced by functions.

    Keras: `clone_model` replaces layers only by layers.

    Args:
        model: functional model.
        inputs: nested like the inputs of the model.
        replace: function from a layer to the function that replaces it.
    """
    return model._run_through_graph(inputs, operation_fn=replace)


def graph_nodes(model: "keras.Model") -> list[Any] | None:
    """The layer calls of a functional model, see `calls_of`; None for other models.

    Keras: a model does not expose its nodes.
    """
    by_depth = getattr(model, "_nodes_by_depth", None)
    return by_depth and [node for nodes in by_depth.values() for node in nodes]


def calls_of(layer: "keras.Layer") -> list[Any]:
    """The symbolic calls of a layer: nodes with `input_tensors`, `output_tensors`.

    Keras 2 has `get_output_at`; Keras 3 has `output`, only for a layer called once.
    """
    return list(layer._inbound_nodes)


def maker_of(tensor: TensorLike) -> "keras.Operation":
    """The layer or operation that computes a symbolic tensor.

    Keras: a `KerasTensor` does not expose its history.
    """
    return tensor._keras_history.operation


def mask_of(tensor: TensorLike) -> TensorLike:
    """The mask that Keras has put on a tensor, or None.

    Keras: a layer gets it as `mask=`; functions and models do not.
    """
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: TensorLike, mask: TensorLike) -> None:
    """Puts a mask on a tensor, where Keras's layers look for it; see `mask_of`."""
    tensor._keras_mask = mask


def is_sigmoid(output: TensorLike) -> bool:
    """True if Keras computes cross-entropies from the logits of a probability.

    Keras on TensorFlow keeps the logits with the result of a sigmoid; no public
    function returns them.
    """
    made_by = getattr(getattr(output, "op", None), "type", None)
    return hasattr(output, "_keras_logits") or made_by == "Sigmoid"


def called_in_training() -> bool | None:
    """The `training` of the model whose call is running; None outside of a call.

    Keras: a function in a layer cannot ask for it; Keras 2's
    `keras.backend.learning_phase` is gone.
    """
    from keras.src.backend.common import global_state

    context = global_state.get_global_attribute("current_call_ctx")
    return None if context is None else bool(context.training)


# === Keras: weights ===


def drop_variable(layer: "keras.Layer", name: str) -> None:
    """Removes a variable from a layer.

    Keras: each `del layer.name` collects garbage, which takes 0.6 s.
    """
    layer._untrack_variable(getattr(layer, name))
    object.__delattr__(layer, name)


@contextlib.contextmanager
def adding_state(layer: "keras.Layer") -> Iterator[None]:
    """Lets a built layer take new variables and metrics until the block ends.

    Keras: a built layer refuses them, but a script's layer may add them in its call.
    """
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


def load_state(model: "keras.Model", weights: Any) -> None:
    """Loads the weights of a model and of its optimizer that Keras saved.

    Keras: `load_weights` takes only a path that ends in `.keras` or `.weights.h5`.

    Args:
        model: must be compiled to load the optimizer.
        weights: open `h5py.File`, `model.weights.h5` of a `.keras` file.

    Raises:
        ValueError: the weights of a layer differ from the file's.
    """
    from keras.src.saving import saving_lib

    class OpenStore(saving_lib.H5IOStore):
        def _get_h5_file(
            self, path_or_io: Unchecked, mode: str | None = None
        ) -> Unchecked:
            return weights

    errors: dict[int, Unchecked] = {}
    failed: set[int] = set()
    saving_lib._load_state(
        model,
        weights_store=OpenStore("model.weights.h5"),
        assets_store=None,
        inner_path="",
        visited_saveables=set(),
        failed_saveables=failed,
        error_msgs=errors,
    )
    if failed:
        saving_lib._raise_loading_failure(errors)


# === Keras: optimizers ===


class OptimizerSteps(KerasClass):
    """A mixin for optimizers that change how they clip, decay and average.

    Keras: `update_step` is public, but the steps before and after it are not. A
    subclass overrides the public methods here; by default they do what Keras does.
    """

    def clip_gradients(self, grads: list[TensorLike]) -> list[TensorLike]:
        """The gradients after clipping."""
        return list(super()._clip_gradients(grads))

    def decay_weights(self, variables: list[TensorLike]) -> None:
        """Moves weights towards 0."""
        super()._apply_weight_decay(variables)

    def move_means(self, variables: list[TensorLike]) -> None:
        """Moves the running means of weights."""
        super()._update_model_variables_moving_average(variables)

    def decays(self, variable: TensorLike) -> bool:
        """True if the weights of a variable decay."""
        return bool(self._use_weight_decay(variable))

    def _clip_gradients(self, grads: list[TensorLike]) -> list[TensorLike]:
        return self.clip_gradients(grads)

    def _apply_weight_decay(self, variables: list[TensorLike]) -> None:
        self.decay_weights(variables)

    def _update_model_variables_moving_average(
        self, trainable_variables: list[TensorLike]
    ) -> None:
        self.move_means(trainable_variables)


def new_optimizer(optimizer: "keras.Optimizer") -> "keras.Optimizer":
    """A new optimizer with the same settings, not built.

    Keras: a configuration lacks the arguments of `exclude_from_weight_decay`.
    """
    new = type(optimizer).from_config(optimizer.get_config())
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(new, name, getattr(optimizer, name))
    return new


def place_of(optimizer: "keras.Optimizer", variable: TensorLike) -> int:
    """The index of a variable among those that an optimizer trains.

    Keras: momenta are lists, and no public name leads from a variable to its momenta.
    """
    return int(optimizer._get_variable_index(variable))


# === Keras: loops ===


def first_epoch(model: "keras.Model") -> int | None:
    """The epoch at which a callback, such as BackupAndRestore, lets `fit` begin.

    Keras: the callback sets a private attribute of its model.
    """
    epoch: int | None = model._initial_epoch
    return epoch


def set_first_epoch(model: "keras.Model", epoch: int | None) -> None:
    """Sets the value of `first_epoch`."""
    model._initial_epoch = epoch


def set_loss_tracker(model: "keras.Model", tracker: "keras.Metric") -> None:
    """Sets the metric that averages the losses of batches.

    Keras: its metric weighs a batch by its rows, even if the loss is a mean over
    tokens. A metric that is set in the public way would be listed twice.
    """
    object.__setattr__(model, "_loss_tracker", tracker)


# With this option, Keras's `fit` marks its own call of `evaluate`, whose data `fit` has
# prepared.
IS_VALIDATION = "_use_cached_eval_dataset"


def data_adapters() -> Any:
    """Keras's module of adapters, which read the data of `fit`; None if it moved.

    Keras: `fit` makes them itself, with a `tf.data` that waits for its tuning.
    """
    try:
        from keras.src.trainers import data_adapters
    except ImportError:
        return None
    names = ("data_adapter", "array_data_adapter", "get_data_adapter")
    has_names = all(hasattr(data_adapters, name) for name in names)
    return data_adapters if has_names else None


class BuildsWithoutBatch(KerasClass):
    """A mixin for models that take no batch of a dataset before the first epoch.

    Keras takes a batch to build a model in a TensorFlow strategy. If samples are drawn,
    this changes the order of the first epoch.
    """

    def _maybe_symbolic_build(
        self, iterator: TensorLike = None, data_batch: TensorLike = None
    ) -> None:
        import keras

        dataset = getattr(getattr(iterator, "data_adapter", None), "_dataset", None)
        specs = getattr(dataset, "element_spec", ())
        shapes = [spec.shape for spec in keras.tree.flatten(specs)]
        if shapes and all(shape.rank is not None for shape in shapes):
            iterator = None
            data_batch = keras.tree.map_structure(
                lambda x: keras.KerasTensor(tuple(x.shape), x.dtype.name), specs
            )
        super()._maybe_symbolic_build(iterator, data_batch)


def set_signature(adapter: Any, signature_of: Callable[..., TensorLike]) -> None:
    """Sets the specification of batches in an adapter of a `PyDataset` or `DataLoader`.

    Keras: a size that is equal in the first two batches becomes fixed.

    Args:
        adapter: adapter of Keras.
        signature_of: function of a batch; returns its `tf.TensorSpec`s.
    """
    is_set = getattr(adapter, "_output_signature", False) is not None
    if is_set or adapter.num_batches == 0:
        return
    if hasattr(adapter, "py_dataset"):
        batch = adapter._standardize_batch(adapter.py_dataset[0])
    else:
        batch = next(adapter.get_numpy_iterator())
    adapter._output_signature = signature_of(batch)


def empty_adapter(adapter: Any) -> None:
    """Releases the data of an adapter after use.

    Keras and TensorFlow 2.21: the global graph keeps the functions of a dataset made
    from Python, and with them the adapter, the data and the model, forever.
    """
    vars(adapter).clear()


def merging(
    function: Callable[..., TensorLike],
) -> dict[str, Callable[..., TensorLike]]:
    """The method of a layer that merges its inputs, two at a time.

    Keras 3.15: `Multiply`, `Maximum` and `Minimum` replace numbers that a mask hides.
    """
    return {"_merge_function": lambda layer, x: functools.reduce(function, x)}


# === Other libraries ===


_lock = threading.Lock()
# Keras's function, once for each active `distributing_batches`.
_originals: list[Callable[..., TensorLike]] = []


@contextlib.contextmanager
def distributing_batches(distribute: Callable[..., TensorLike]) -> Iterator[None]:
    """Lets Keras on JAX put batches on devices by another function.

    Keras splits each batch like the first one, and JAX refuses a smaller last batch
    (IndivisibleError). Keras has no hook for this.

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


def has_onednn() -> bool:
    """True if TensorFlow computes with oneDNN.

    TensorFlow 2.21: its own tests use a private module to find out.
    """
    try:
        from tensorflow.python.util import _pywrap_util_port as port

        return bool(port.IsMklEnabled())
    except (ImportError, AttributeError):
        return False


def torch_version(tensor: TensorLike) -> tuple[int, int]:
    """Address of a PyTorch tensor, and how often it was written in place.

    PyTorch 2.13: its notes on autograd name the number, but no public name returns it.
    """
    return tensor.data_ptr(), tensor._version
