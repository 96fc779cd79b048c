"""bert4keras's interface on Keras 3, so that its scripts run with one import changed.

    from bert4keras.models import build_transformer_model
    from roformer_keras.bert4keras.models import build_transformer_model

Modules, names, layer names, inputs and numbers equal bert4keras 0.11.5. Models
are Keras 3 models made of this package's layers. `backend.keras` hands out what scripts
of Keras 2 call, see `keras2`; Keras itself stays as it is.

Where the names of the original are; a name that is not listed is in the file of its
module, such as `models.build_transformer_model` in `models.py`:

| in bert4keras | file |
|---|---|
| `backend`: `K` | `keras_functions.py` |
| `backend.K`: `function` `gradients` | `train_functions.py` |
| `backend`: `flatten` `reshape` `symbolic` | `keras_functions.py` |
| `backend`: `keras` | `keras2.py` |
| `backend.keras.models`: `Model` `Sequential` `load_model` | `keras2_models.py` |
| `backend`: `align` `apply_rotary_position_embeddings` | `layer_functions.py` |
| `backend`: `sequence_masking` | `layer_functions.py` |
| `backend`: `gelu_erf` `gelu_tanh` `set_gelu` | `layer_functions.py` |
| `backend`: `sinusoidal_embeddings` | `layer_functions.py` |
| `backend`: `multilabel_categorical_crossentropy` | `../layers/pointer.py` |
| `layers`: `Add` `BiasAdd` `Concatenate1D` | `basic_layers.py` |
| `layers`: `GlobalMaxPooling1D` `Layer` `Loss` `ScaleOffset` | `basic_layers.py` |
| `layers`: `FirstToken` `LanguageModelMask` | `basic_layers.py` |
| `layers`: `UnifiedLanguageModelMask` | `basic_layers.py` |
| `layers`: `FeedForward` `LayerNormalization` | `block_layers.py` |
| `layers`: `MultiHeadAttention` | `block_layers.py` |
| `layers`: `Embedding` `PositionEmbedding` | `embedding_layers.py` |
| `layers`: `SinusoidalPositionEmbedding` | `embedding_layers.py` |
| `layers`: `ConditionalRandomField` | `structured_layers.py` |
| `layers`: `EfficientGlobalPointer` `GlobalPointer` | `structured_layers.py` |
| `models`: `BERT` `RoFormer` `RoFormerV2` `LM_Mask` `UniLM_Mask` | `bert.py` |
| `models`: `Transformer` | `transformer.py` |
| `models`: `Model` | `keras2_models.py` |
| `models`: `keras` | `keras2.py` |
| `snippets`: `AutoRegressiveDecoder` `ViterbiDecoder` `softmax` | `decoding.py` |
| `snippets`: `DataGenerator` `sequence_padding` `to_array` | `data_generator.py` |
| `snippets`: `adversarial_training` | `adversarial.py` |
| `snippets`: `convert_to_str` `convert_to_unicode` | `text_functions.py` |
| `snippets`: `is_one_of` `is_string` `open` | `text_functions.py` |
| `snippets`: `lowercase_and_normalize` `strQ2B` | `text_functions.py` |
| `snippets`: `string_matching` `text_segmentate` | `text_functions.py` |
| `snippets`: `truncate_sequences` | `text_functions.py` |
| `tokenizers`: `convert_to_unicode` `is_string` `open` | `text_functions.py` |
| `tokenizers`: `lowercase_and_normalize` | `text_functions.py` |
| `tokenizers`: `truncate_sequences` | `text_functions.py` |
"""

from roformer_keras.base.keras_backend import starting

with starting():
    # A model may be loaded where its script is not imported, so all classes are known.
    from roformer_keras.bert4keras import layers, optimizers  # noqa: F401

__version__ = "0.11.5"
# The version of bert4keras whose numbers these are.
