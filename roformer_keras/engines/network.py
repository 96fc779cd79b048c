"""The networks of this package that write text, for engines other than Keras.

A graph, `OpenVINOGraph` or `OnnxGraph`, has the operations. Dropout is left out.
"""

from typing import Any

import numpy as np
from keras import ops

from roformer_keras.errors import CheckpointError, ConfigurationError


def write_language_model(graph: Any, model: Any) -> None:
    """Writes a step of a `RoFormerCausalLM` or `RoFormerSim`.

    Inputs are int32 `token_ids` and `segment_ids` and float32 `position_ids`
    `(rows, length)`; float32 `mask` `(rows, 1, length, keys)`, which is added to the
    scores; and int32 `rows` `(rows,)`: which row of the last step each one continues.
    The output is `logits` of the token after the last: float32 `(rows, vocabulary)`.

    Raises:
        ConfigurationError: the graph lacks an operation, or attention has another form.
        CheckpointError: weights are not finite numbers.
    """
    rows = graph.input("rows", "int32", (None,))
    x, table = _run_backbone(graph, model.backbone, rows)
    head, x = model.mlm_head, graph.token(x, -1)
    if head.dense.built:
        x = _dense(graph, head.dense, x)
    if head.transform:
        x = _activation(graph, head.activation, x)
        x = _norm(graph, head.norm, x)
    logits = graph.score(x, table)
    if head.transform:
        logits = graph.add(logits, _value(head.bias))
    graph.output("logits", logits, (None, None))


def write_vectors(graph: Any, model: Any) -> None:
    """Writes the pooled output of a `RoFormerSim`: float32 `vectors` `(rows, dim)`.

    Inputs are those of `write_language_model` but `rows`.
    """
    x, _ = _run_backbone(graph, model.backbone)
    pooler = model.backbone.pooler
    x = _dense(graph, pooler.dense, graph.token(x, 0))
    x = _activation(graph, pooler.activation, x)
    graph.output("vectors", x, (None, None))


def write_encoder(graph: Any, model: Any) -> None:
    """Writes the encoder of a `RoFormerSeq2Seq`, and what its decoder sees of it.

    Inputs are int32 `token_ids` and float32 `position_ids` `(rows, length)`, and
    float32 `mask` `(rows, 1, 1, length)`. Outputs are the keys and values of each block
    of the decoder, `(rows, heads, length, dim)`, by the names of `memory_names`.
    """
    ids, positions = _ids(graph, "token_ids"), _positions(graph)
    mask = graph.input("mask", "float32", (None, 1, None, None))
    x, _ = _embed_scaled(graph, model, ids, positions)
    attend = _self_attention(graph, mask, positions)
    for block in model.encoder_layers:
        x = _add(graph, block, x, attend, "attention")
        x = _add(graph, block, x, _feed, "feed_forward")
    if model.encoder_norm:
        x = _norm(graph, model.encoder_norm, x)
    names, shape = iter(memory_names(model.config.num_layers)), _memory_shape(model)
    for block in model.decoder_layers:
        attention = block.cross_attention
        for dense in (attention.key, attention.value):
            projected = graph.heads(_dense(graph, dense, x), attention.num_heads)
            graph.output(next(names), projected, shape)


def write_decoder(graph: Any, model: Any) -> None:
    """Writes a step of the decoder of a `RoFormerSeq2Seq`.

    Inputs are those of `write_language_model` but `segment_ids`, with one token a row;
    what `write_encoder` gives, of which each row serves as many neighbouring rows; and
    float32 `memory_mask` `(memory rows, 1, 1, length)`.
    """
    config = model.config
    ids, positions = _ids(graph, "token_ids"), _positions(graph)
    rows = graph.input("rows", "int32", (None,))
    mask = graph.input("mask", "float32", (None, 1, None, None))
    memory_mask = graph.input("memory_mask", "float32", (None, 1, 1, None))
    names, shape = memory_names(config.num_layers), _memory_shape(model)
    memory = iter([graph.input(name, "float32", shape) for name in names])

    def attend_to_memory(graph, block, x):
        attention = block.cross_attention
        keys, values = next(memory), next(memory)
        query = graph.heads(_dense(graph, attention.query, x), attention.num_heads)
        # Rows that share keys are more queries of one row.
        query = graph.grouped(query, keys, attention.num_heads, attention.key_dim)
        mixed = graph.attention(query, keys, values, memory_mask, attention.key_dim)
        width = attention.num_heads * attention.head_dim
        return _dense(graph, attention.output_dense, graph.ungrouped(mixed, width))

    x, table = _embed_scaled(graph, model, ids, positions)
    attend = _self_attention(graph, mask, positions, rows)
    for block in model.decoder_layers:
        x = _add(graph, block, x, attend, "attention")
        x = _add(graph, block, x, attend_to_memory, "cross_attention")
        x = _add(graph, block, x, _feed, "feed_forward")
    if model.decoder_norm:
        x = _norm(graph, model.decoder_norm, x)
    logits = graph.score(graph.token(x, -1), table)
    graph.output("logits", logits, (None, None))


def memory_names(layers: int) -> list[str]:
    """Names of the keys and values that an encoder makes for a decoder's blocks."""
    return [f"{kind}_{i}" for i in range(layers) for kind in ("keys", "values")]


# === Parts ===


def _memory_shape(model):
    return (None, model.config.num_heads, None, model.config.head_dim)


def _ids(graph, name):
    return graph.input(name, "int32", (None, None))


def _positions(graph):
    return graph.input("position_ids", "float32", (None, None))


def _run_backbone(graph, backbone, rows=None):
    """Hidden states, and the table of tokens.

    With `rows` the tokens are new ones, and also see those of the steps before.
    """
    config = backbone.config
    for name, computed in (
        ("attention_type", "softmax"),
        ("residual_attention_scores", False),
        ("layer_norm_cond_size", None),
    ):
        if (value := getattr(config, name)) != computed:
            raise ConfigurationError(
                f"engines other than Keras need {name}={computed!r}, got {value!r}",
                hint="generate with engine='keras' on TensorFlow, JAX or PyTorch",
            )
    ids, segments = _ids(graph, "token_ids"), _ids(graph, "segment_ids")
    positions = _positions(graph)
    mask = graph.input("mask", "float32", (None, 1, None, None))
    table = segment_table = _table(graph, backbone.token_embedding)
    if not config.shared_segment_embeddings:
        segment_table = _table(graph, backbone.segment_embedding)
    x = graph.add(graph.take(table, ids), graph.take(segment_table, segments))
    x = _norm(graph, backbone.embedding_norm, x)
    if backbone.embedding_mapping:
        x = _dense(graph, backbone.embedding_mapping, x)
    attend = _self_attention(graph, mask, positions, rows)
    for block in backbone.transformer_layers:
        x = _add(graph, block, x, attend, "attention")
        x = _add(graph, block, x, _feed, "feed_forward")
    return x, table


def _embed_scaled(graph, model, ids, positions):
    """Embeddings of a `RoFormerSeq2Seq`, and the table of tokens."""
    dim, table = model.config.hidden_dim, _table(graph, model.token_embedding)
    x = graph.multiply(graph.take(table, ids), np.float32(dim**0.5))
    if model.position_embedding:
        frequencies = np.repeat(_frequencies(dim, model.position_embedding.base), 2)
        cos, sin = graph.angles(positions, frequencies)
        x = graph.add(x, graph.where(np.arange(dim) % 2 == 0, sin, cos))
    return x, table


def _add(graph, block, x, layer, name):
    """`norm(x + layer(x))`, or with `norm_first` `x + layer(norm(x))`."""
    norm = getattr(block, f"{name}_norm")
    inputs = _norm(graph, norm, x) if block.norm_first else x
    x = graph.add(x, layer(graph, block, inputs))
    return x if block.norm_first else _norm(graph, norm, x)


def _feed(graph, block, x):
    layer = block.feed_forward
    x = _dense(graph, layer.intermediate_dense, x)
    return _dense(graph, layer.output_dense, _activation(graph, layer.activation, x))


def _activation(graph, name, x):
    """A Keras activation by its name."""
    if name not in graph.activations:
        raise ConfigurationError(
            "generation on other engines knows the activations "
            f"{', '.join(map(repr, sorted(graph.activations)))}, got {name!r}",
            hint="generate with engine='keras'",
        )
    return graph.activations[name](graph, x)


def _self_attention(graph, mask, positions, rows=None):
    """A function of graph, block and x; the blocks share the angles of positions."""
    angles, numbers = {}, iter(range(10**6))

    def attend(graph, block, x):
        layer = block.attention
        heads, dim = layer.num_heads, layer.key_dim
        order = None
        if layer.rotary:
            # As halves: a score is a sum over features, in whichever order they are.
            order = np.arange(dim)
            if layer.layout == "interleaved":
                order = order.reshape(-1, 2).T.ravel()
            key = dim, layer.base
            if key not in angles:
                frequencies = np.tile(_frequencies(*key), 2)
                angles[key] = graph.angles(positions, frequencies)
        query, key, value = (
            graph.heads(_dense(graph, dense, x, heads, columns), heads)
            for dense, columns in (
                (layer.query, order),
                (layer.key, order),
                (layer.value, None),
            )
        )
        if layer.rotary:
            turn = angles[dim, layer.base]
            query, key = (graph.rotated(part, turn, dim) for part in (query, key))
        if rows is not None:
            number = next(numbers)
            key = graph.cached(f"keys_{number}", key, heads, dim, rows)
            value = graph.cached(f"values_{number}", value, heads, layer.head_dim, rows)
        mixed = graph.attention(query, key, value, mask, dim)
        joined = graph.joined(mixed, heads * layer.head_dim)
        return _dense(graph, layer.output_dense, joined)

    return attend


def _frequencies(dim, base):
    return (base ** (-np.arange(0, dim, 2) / dim)).astype("float32")


def _norm(graph, layer, x):
    if hasattr(layer, "gamma"):
        return graph.layer_norm(
            x, _value(layer.gamma), _value(layer.beta), layer.epsilon
        )
    return graph.rms_norm(x, layer.epsilon)


def _dense(graph, layer, x, heads=1, order=None):
    """A dense layer; its outputs in each head in another order, if one is given."""
    if layer.quantization_mode is not None:
        raise _quantized(layer)
    kernel = _value(layer.kernel)
    bias = _value(layer.bias) if layer.use_bias else None
    if order is not None:
        kernel, bias = (
            array
            if array is None
            else array.reshape(*array.shape[:-1], heads, -1)[..., order].reshape(
                array.shape
            )
            for array in (kernel, bias)
        )
    return graph.linear(x, kernel, bias)


def _table(graph, layer):
    if layer.quantization_mode is not None:
        raise _quantized(layer)
    return graph.table(_value(layer.embeddings))


def _quantized(layer):
    return ConfigurationError(
        f"engines other than Keras take float weights, got {layer.name} in "
        f"{layer.quantization_mode}",
        hint="load the model as floats, and use engine='openvino-int8'",
    )


def _value(variable) -> np.ndarray:
    """The weights of a variable, float32; raises CheckpointError for NaN or infinity.

    Integers do not show them, so that the logits of a network in 8 bits would not.
    """
    value = ops.convert_to_numpy(ops.cast(variable, "float32"))
    if not np.isfinite(value).all():
        # A kernel with LoRA is a sum.
        name = getattr(variable, "path", "a kernel with LoRA")
        raise CheckpointError(
            f"the model's weights must be finite numbers, got NaN or infinity in {name}"
            ": check the file that they come from"
        )
    return value
