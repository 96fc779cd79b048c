"""A mixin of all layers and models with the habits of Keras 2, see `keras2`."""

import functools
from collections.abc import Callable, Mapping

import keras
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.types import Shape, TensorLike, Unchecked
from roformer_keras.bert4keras.layer_functions import named_activation


def subclass_as_keras(
    base: type,
    mixins: tuple[type, ...] = (),
    methods: Mapping[str, Unchecked] | None = None,
) -> type:
    """A subclass that is saved under the name of Keras's class, which then loads it."""
    names = ("__module__", "__qualname__", "__doc__")
    content = {name: getattr(base, name) for name in names}
    return type(base.__name__, (*mixins, base), {**content, **(methods or {})})


_OLD_ORDER = ("name", "shape", "dtype", "initializer", "regularizer", "trainable")


def _is_empty(mask: TensorLike) -> bool:
    is_list = isinstance(mask, list | tuple) and len(mask) > 0
    return is_list and all(one is None for one in mask)


def _without_empty_masks(method: Callable) -> Callable:
    @functools.wraps(method)
    def call(*args, **options):
        args = [None if _is_empty(x) else x for x in args]
        if _is_empty(options.get("mask")):
            options["mask"] = None
        return method(*args, **options)

    return call


class NodeTensors(quirks.KerasClass):
    """A mixin of layers that tell the tensors of their calls.

    Subclasses get None for the mask of a list of which no tensor has a mask.
    """

    def __init_subclass__(cls, **options: Unchecked) -> None:
        super().__init_subclass__(**options)
        for name in {"call", "compute_mask"} & vars(cls).keys():
            setattr(cls, name, _without_empty_masks(vars(cls)[name]))

    def __init__(self, *args: Unchecked, **options: Unchecked):
        options = {
            key: named_activation(x) if key.endswith("activation") else x
            for key, x in options.items()
        }
        super().__init__(*map(named_activation, args), **options)

    def add_metric(
        self,
        value: TensorLike,
        aggregation: str | None = "mean",
        name: str | None = None,
    ) -> None:
        """Shows the mean of a value over the training batches of an epoch.

        Args:
            value: float, of any shape.
            aggregation: `"mean"`, or None, which is the same.
            name: of the metric.
        """
        name = name or "metric"
        attribute = f"metric_{name}"
        if not hasattr(self, attribute):
            # Keras takes no new state once a layer is built, and only the call knows.
            with quirks.adding_state(self):
                setattr(self, attribute, keras.metrics.Mean(name=name))
        if quirks.called_in_training():
            getattr(self, attribute).update_state(ops.mean(value))

    def get_input_at(self, node_index: int) -> TensorLike:
        """The symbolic input of the layer's call of a number."""
        return self._tensors_at(node_index, "input_tensors")

    def get_output_at(self, node_index: int) -> TensorLike:
        """The symbolic output of the layer's call of a number."""
        return self._tensors_at(node_index, "output_tensors")

    @property
    def input_shape(self) -> Shape | list[Shape]:
        """The shape of the layer's input, or a list of shapes."""
        return keras.tree.map_structure(lambda x: x.shape, self.get_input_at(0))

    @property
    def output_shape(self) -> Shape | list[Shape]:
        """The shape of the layer's output, or a list of shapes."""
        return keras.tree.map_structure(lambda x: x.shape, self.get_output_at(0))

    def add_weight(self, *args: Unchecked, **options: Unchecked) -> keras.Variable:
        """Adds a weight as Keras does; the name may come first."""
        if args and isinstance(args[0], str):
            options |= zip(_OLD_ORDER, args, strict=False)
            args = ()
        return super().add_weight(*args, **options)

    def _tensors_at(self, node_index: int, name: str) -> TensorLike:
        nodes = quirks.calls_of(self)
        if not -len(nodes) <= node_index < len(nodes):
            raise ValueError(
                f"node_index must be that of a call of the layer {self.name}, which "
                f"was called {len(nodes)} times, got {node_index}"
            )
        tensors = getattr(nodes[node_index], name)
        return tensors[0] if len(tensors) == 1 else list(tensors)
