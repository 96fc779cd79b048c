"""Features and cosines of neighbouring vectors."""

import keras
from keras import ops

from roformer_keras.losses import pair_cosines


@keras.saving.register_keras_serializable("roformer_keras")
class PairFeatures(keras.layers.Layer):
    """(a, b, |a - b|) of each pair of neighbouring vectors.

    Call arguments:
        vectors: float `(2 * pairs, dim)`.
    """

    def call(self, vectors):
        first, second = vectors[0::2], vectors[1::2]
        return ops.concatenate([first, second, ops.abs(first - second)], axis=-1)

    def write_network(self, writer, vectors):
        """Writes the layer into a graph of another engine."""
        graph = writer.graph
        first, second = graph.neighbours(vectors)
        gap = graph.absolute(graph.subtract(first, second))
        return graph.concatenated(first, second, gap)

    def compute_output_shape(self, vectors_shape):
        return (None, 3 * vectors_shape[-1])


@keras.saving.register_keras_serializable("roformer_keras")
class PairCosines(keras.layers.Layer):
    """The cosine of each pair of neighbouring vectors.

    Call arguments:
        vectors: float `(2 * pairs, dim)`.
    """

    def call(self, vectors):
        return pair_cosines(vectors[0::2], vectors[1::2])

    def write_network(self, writer, vectors):
        """Writes the layer into a graph of another engine."""
        graph = writer.graph
        first, second = graph.neighbours(writer.unit_length(self, vectors))
        return graph.item(graph.total(graph.multiply(first, second), 1), 0, 1)

    def compute_output_shape(self, vectors_shape):
        return (None,)
