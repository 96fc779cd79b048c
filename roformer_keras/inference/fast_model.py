"""Keras's usual methods, faster on TensorFlow."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from roformer_keras.base import quirks
from roformer_keras.base.checks import check_choice
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.other_names import explain_withdrawn
from roformer_keras.base.processes import refuse_forked_process
from roformer_keras.base.types import ENGINES
from roformer_keras.data.adapters import call_without_wait, uneven_batches
from roformer_keras.engines.known import GRAPH_CALLS, replaced_methods, settings
from roformer_keras.inference.compiled_forward import (
    Structure,
    for_any_shape,
    inference_of,
)
from roformer_keras.layers.fused import fused


@keras.saving.register_keras_serializable("roformer_keras")
class FastModel(keras.Model):
    """A functional `keras.Model` whose methods do not wait.

    `keras.Model(...)` on a backbone of this package runs as Keras does. With this class
    instead:

    - `fit`, `evaluate` and `predict` do not wait for the tuning of `tf.data`.
    - Steps of `evaluate` and `predict` use the fused norm, see `layers.fused`.
    - `predict` and `predict_on_batch` make one graph for batches of all shapes.
    - `model(ids)` outside a graph runs a stored graph. Without it, a short text spends
      most of its time in dispatching some 2,000 operations of TensorFlow and Keras. The
      first call traces the graph, which takes as long as ten calls without one, and
      returns the same numbers. Set `model.run_eagerly = True` to
      trace nothing, for example to debug a layer.

    Other backends run as in Keras: PyTorch has no graph, and JAX would compile one for
    each shape, which takes as long as some fifteen calls.

    Example:
        >>> backbone = roformer_keras.RoFormerBackbone.from_preset("roformer-char")
        >>> hidden = keras.layers.GlobalAveragePooling1D()(backbone.output)
        >>> classes = keras.layers.Dense(3)(hidden)
        >>> model = roformer_keras.FastModel(backbone.input, classes)
        >>> model.predict(backbone.tokenizer(["今天天气不错"]), verbose=0).shape
        (1, 3)
    """

    predict_function: Any
    # See `inference.inference_of`.
    _inference: Any = None
    _engine = "auto"
    # See `refuse_changed`.
    _made_layers: Any = None
    # The structure for which Keras made its present functions.
    _made_for: Structure | None = None

    @property
    def engine(self) -> str:
        """Engine that computes texts: `"keras"`, `"openvino"` or `"openvino-int8"`.

        Assign an engine or `"auto"`, the default, which means OpenVINO if it is
        installed, Keras runs on a CPU, and the model is in float32 or bfloat16 and
        supported by OpenVINO; otherwise it means Keras. With float weights, the answers
        equal Keras's up to rounding; with `"openvino-int8"`, kernels and embeddings are
        rounded to 8 bits. Keras always computes calls, and `predict` and `evaluate` of
        ids.

        Raises:
            ConfigurationError: the engine is unknown.

        Example:
            >>> model = roformer_keras.RoFormerMaskedLM.from_preset("roformer-char")
            >>> model.engine = "keras"
            >>> model.engine
            'keras'
        """
        return inference_of(self).chosen_engine(self._engine)

    @engine.setter
    def engine(self, engine: str) -> None:
        check_choice("engine", engine, ENGINES)
        self._engine = engine

    @property
    def run_eagerly(self) -> bool:
        """True if this model and its submodels are called without a graph."""
        return super().run_eagerly

    @run_eagerly.setter
    def run_eagerly(self, value: bool) -> None:
        if value != self.run_eagerly:
            for layer in quirks.nested_layers(self):
                if isinstance(layer, keras.Model):
                    keras.Model.run_eagerly.fset(layer, value)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the model as `keras.Model.save` does, to `.keras` or a folder.

        Args:
            filepath, args, kwargs: as in `keras.Model.save`.

        Raises:
            ConfigurationError: the path ends in `.h5`, which Keras could not read, or a
                layer is quantized or differs from the layer that the constructor made.
        """
        refuse_quantized(self)
        refuse_changed(self)
        refuse(
            str(filepath).endswith((".h5", ".hdf5")),
            f"Keras cannot read these models from HDF5, got the path {filepath}",
            hint="end the path in .keras, or write only the weights by "
            "model.save_weights('name.weights.h5')",
        )
        if self.compiled and not self.optimizer.built:
            # Readers build the optimizer, and Keras warns if the number of variables
            # differs.
            self.optimizer.build(self.trainable_variables)
        super().save(filepath, *args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains the model as `keras.Model.fit` does.

        Raises:
            BackendError: Keras runs on OpenVINO, which does not train.
        """
        return call_without_wait(super().fit, args, kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Computes losses and metrics as `keras.Model.evaluate` does."""
        return call_without_wait(super().evaluate, args, kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Computes outputs as `keras.Model.predict` does."""
        return call_without_wait(super().predict, args, kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Trains on one batch as `keras.Model.train_on_batch` does."""
        with uneven_batches():
            return super().train_on_batch(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates one batch as `keras.Model.test_on_batch` does."""
        with uneven_batches():
            return super().test_on_batch(*args, **kwargs)

    def predict_step(self, *args: Any) -> Any:
        """Runs Keras's step of `predict` with the fused norm."""
        with self._fused():
            return super().predict_step(*args)

    def test_step(self, *args: Any) -> Any:
        """Runs Keras's step of `evaluate` with the fused norm."""
        with self._fused():
            return super().test_step(*args)

    def _fused(self):
        is_graph = self._is_graph_of_tensorflow()
        return fused() if is_graph else contextlib.nullcontext()

    # === The functions of Keras's loops ===

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes Keras's function of `predict`, and again after a layer has changed."""
        self._drop_old_functions()
        before = self.predict_function
        super().make_predict_function(force)
        is_new = self.predict_function is not before
        # A step of the user may need the sizes of its batch.
        is_own = type(self).predict_step is FastModel.predict_step
        if is_new and is_own and self._is_graph_of_tensorflow():
            self.predict_function = for_any_shape(self.predict_function, self)
        return self.predict_function

    def _is_graph_of_tensorflow(self):
        """True if Keras's loops run a TensorFlow graph without XLA."""
        is_graph = not (self.run_eagerly or self.jit_compile)
        return is_graph and keras.backend.backend() == "tensorflow"

    def make_test_function(self, force: bool = False) -> Any:
        """Makes Keras's function of `evaluate`, and again after a layer has changed."""
        self._drop_old_functions()
        return super().make_test_function(force)

    def make_train_function(self, force: bool = False) -> Any:
        """Makes Keras's function of `fit`, and again after a layer has changed."""
        self._drop_old_functions()
        for layer in quirks.nested_layers(self):
            if isinstance(layer, keras.Model):
                inference_of(layer).release()
        optimizer = self.optimizer if self.compiled else None
        if optimizer is not None and not optimizer.built:
            # TensorFlow traces a step twice if it makes variables.
            optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def _drop_old_functions(self):
        refuse_forked_process()
        structure = inference_of(self).structure()
        if self._made_for not in (None, structure):
            self.train_function = self.test_function = self.predict_function = None
        self._made_for = structure

    # === The call ===

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """Computes the outputs, outside a graph by a stored graph."""
        refuse_forked_process()
        has_mask = any(x is not None for x in keras.tree.flatten(mask))
        is_plain = not (training or kwargs or has_mask)
        if is_plain and not self.run_eagerly and _is_outside_graph(inputs):
            return inference_of(self).call(super().call, inputs)
        return super().call(inputs, training=training, mask=mask, **kwargs)


GRAPH_CALLS.add(FastModel.call)


def _is_outside_graph(inputs):
    """True if TensorFlow computes numbers here, operation by operation."""
    flat = keras.tree.flatten(inputs)
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return (
        tf.executing_eagerly()
        and not tf.config.functions_run_eagerly()
        and not tf.distribute.has_strategy()
        and all(isinstance(x, np.ndarray | tf.Tensor) for x in flat)
    )


def refuse_quantized(model: keras.Layer) -> None:
    """Raises ConfigurationError if Keras has quantized a layer of a model."""
    for layer in quirks.nested_layers(model):
        if getattr(layer, "quantization_mode", None) is not None:
            raise ConfigurationError(
                f"weights must be floats, got {layer.path} in "
                f"{layer.quantization_mode}: {explain_withdrawn('quantize')}"
            )


class MadeLayers:
    """The layers of a model as its constructor made them."""

    def __init__(self, model: keras.Model):
        self._layers = [
            (layer, type(layer), settings(layer))
            for layer in quirks.nested_layers(model)
        ]

    def remember(self, owner: keras.Layer, names: Iterable[str]) -> None:
        """Updates the record of these attributes: a method of this package set them."""
        for layer, _, made in self._layers:
            if layer is owner:
                made.update({name: getattr(owner, name, None) for name in names})

    def changed(self) -> Iterator[tuple[str, str]]:
        """Yields the path and the change of each layer that computes something else."""
        for layer, kind, made in self._layers:
            methods = replaced_methods(layer)
            if isinstance(layer, keras.Model):
                methods &= {"call", "__call__"}
            if type(layer) is not kind:
                yield layer.path, f"is now a {type(layer).__name__}"
            for name in sorted(methods):
                yield layer.path, f"has another {name}"
            for name, value in made.items():
                new = getattr(layer, name, None)
                is_layer = isinstance(value, keras.Layer)
                if new is not value and (is_layer or new != value):
                    yield layer.path, f"has another {name}"


def remember_layers(model: keras.Model) -> None:
    """Stores the layers of a new model and of its submodels for `refuse_changed`."""
    for layer in quirks.nested_layers(model):
        if hasattr(layer, "_made_layers"):
            layer._made_layers = MadeLayers(layer)


def refuse_changed(model: keras.Model) -> None:
    """Raises ConfigurationError if a configuration would lose a changed layer."""
    for layer in quirks.nested_layers(model):
        made = getattr(layer, "_made_layers", None)
        for path, change in made.changed() if made else ():
            raise ConfigurationError(
                f"a file holds the layers that {type(layer).__name__} makes, but the "
                f"layer {path} {change}",
                hint="undo the change; or make it in the constructor of a subclass, "
                "and use model.save('name.keras'); or write the weights alone by "
                "model.save_weights('name.weights.h5')",
            )
