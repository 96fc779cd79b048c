"""`bert4keras.layers`: the layers that its models are made of, and those of Keras.

Each is a layer of this package under bert4keras's name, with its arguments, its order
of weights, and its masks. `original_parts` says how bert4keras names the parts of a
layer, for the files that its users saved.
"""

from roformer_keras.base.errors import refuse
from roformer_keras.base.keras_backend import name_error
from roformer_keras.bert4keras.backend import keras
from roformer_keras.bert4keras.basic_layers import (  # noqa: F401
    Add,
    BiasAdd,
    Concatenate1D,
    FirstToken,
    GlobalMaxPooling1D,
    LanguageModelMask,
    Layer,
    Loss,
    ScaleOffset,
    UnifiedLanguageModelMask,
)
from roformer_keras.bert4keras.block_layers import (  # noqa: F401
    FeedForward,
    LayerNormalization,
    MultiHeadAttention,
)
from roformer_keras.bert4keras.embedding_layers import (  # noqa: F401
    Embedding,
    PositionEmbedding,
    SinusoidalPositionEmbedding,
)
from roformer_keras.bert4keras.layer_functions import join_masks
from roformer_keras.bert4keras.structured_layers import (  # noqa: F401
    ConditionalRandomField,
    EfficientGlobalPointer,
    GlobalPointer,
)

custom_objects: dict[str, type] = {
    name: value
    for name, value in sorted(globals().items())
    if hasattr(value, "compute_mask") and value is not Layer
}
GlobalAveragePooling1D = keras.layers.GlobalAveragePooling1D
# bert4keras's module has all layers of Keras as well.
__all__ = ["Layer", "join_masks", "keras", *custom_objects]
__all__ += [x for x in dir(keras.layers) if x[0].isupper() and x not in __all__]

_NOT_COVERED = (
    "GatedAttentionUnit",
    "RelativePositionEmbedding",
    "RelativePositionEmbeddingT5",
)


def __getattr__(name: str) -> type:
    if name[0].isupper() and hasattr(keras.layers, name):
        return getattr(keras.layers, name)
    refuse(
        name in _NOT_COVERED,
        f"the layer {name} belongs to models that roformer_keras.bert4keras does "
        "not cover: it has those of RoFormer, RoFormerV2 and BERT",
    )
    raise name_error(__name__, name, __all__)
