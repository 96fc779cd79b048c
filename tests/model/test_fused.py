"""Operations of one pass: the same numbers, and one operation each in the graph."""

import collections
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tiny_models import ids
from weight_cases import SIZES

from roformer_keras import RoFormerBackbone, RoFormerConfig
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.layers import LayerNorm, erf_gelu
from roformer_keras.layers.fused import computes_gelu, fused, is_fused

LAYERS = 2
CONFIG = {**SIZES, "vocabulary_size": 50, "num_layers": LAYERS}
CONFIG |= {"hidden_dim": 32, "intermediate_dim": 64}

with fused():
    HAS_OPERATIONS = is_fused()

needs_operations = pytest.mark.skipif(
    not HAS_OPERATIONS, reason="TensorFlow runs without oneDNN, or on a GPU"
)


def operations_of(model):
    """Operation -> how many, in the graph as TensorFlow runs it to answer."""

    @tf.function(
        input_signature=[tf.TensorSpec((None, None), "int32")] * 2, autograph=False
    )
    def answer(token_ids, segment_ids):
        inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
        with fused():
            return model(inputs, training=False)

    context.context().enable_graph_collection()
    try:
        answer(**ids())
        graphs = context.context().export_run_metadata().function_graphs
    finally:
        context.context().disable_graph_collection()
    (graph,) = graphs[-1].partition_graphs
    counts = collections.Counter()
    for node in graph.node:
        with_what = [name.decode() for name in node.attr["fused_ops"].list.s]
        counts[" ".join([node.op, *with_what])] += 1
    return counts


CPU = Path("/proc/cpuinfo")
needs_avx512 = pytest.mark.skipif(
    CPU.is_file() and "avx512f" not in CPU.read_text(encoding="utf-8"),
    reason="oneDNN has bfloat16 with AVX-512 only",
)


@needs_operations
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=needs_avx512)]
)
def test_a_layer_is_few_operations(dtype):
    counts = operations_of(RoFormerBackbone(RoFormerConfig(**CONFIG), dtype=dtype))
    assert counts["_MklNativeFusedMatMul BiasAdd GeluExact"] == LAYERS
    assert counts["_MklNativeFusedMatMul BiasAdd Add"] == LAYERS
    assert counts["_MklNativeFusedMatMul BiasAdd"] == 4 * LAYERS
    # All scores at once, or those of a block.
    assert counts["_MklFusedBatchMatMulV2 Mul Add"] == 2 * LAYERS
    assert counts["_MklLayerNorm"] == 1 + 2 * LAYERS
    for name in ("BiasAdd", "Erf", "Mean", "Rsqrt"):
        assert name not in counts


def test_answers_are_those_of_the_model():
    for options, dtype, tolerance in (
        ({}, "bfloat16", 0.05),
        ({"custom_position_ids": True, "layer_norm_cond_size": 4}, "float32", 2e-6),
        ({"attention": "unilm", "residual_attention_scores": True}, "float32", 2e-6),
        ({"model_type": "roformer_v2", "attention_key_size": 6}, "float32", 2e-6),
    ):
        model = RoFormerBackbone(RoFormerConfig(**CONFIG, **options), dtype=dtype)
        for length in (1, 9):
            inputs, random = ids(length=length), np.random.default_rng(1)
            inputs["segment_ids"][:, 5:] = 1
            if "position_ids" in model.input:
                positions = random.uniform(0, 9, (3, length))
                inputs["position_ids"] = positions.astype("float32")
                condition = random.normal(size=(3, 4))
                inputs["layer_norm_cond"] = condition.astype("float32")
            expected = np.asarray(model(inputs, training=False)).astype("float32")
            output = run_model(model, inputs)
            assert output.dtype == dtype
            np.testing.assert_allclose(
                output.astype("float32"), expected, atol=tolerance, err_msg=str(options)
            )


def test_vectors_that_are_all_one_number_have_a_norm():
    norm = LayerNorm()
    norm.build((None, 8))
    norm.beta.assign(np.arange(8.0))

    @tf.function(input_signature=[tf.TensorSpec((None, 8))], autograph=False)
    def fused_norm(x):
        with fused():
            return norm(x)

    x = np.repeat([[0.0], [3.0], [-1e6]], 8, axis=1).astype("float32")
    np.testing.assert_allclose(fused_norm(x), [np.arange(8.0)] * 3, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_gelu(dtype):
    """The closed form gives what TensorFlow derives, twice too."""
    x = tf.cast(tf.linspace(-4.0, 4.0, 41), dtype)
    exact = tf.cast(x, "float64")

    def gelu(x):
        return 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5))

    def values(function, x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = function(x)
            slope = inner.gradient(y, x)
        return y, slope, outer.gradient(slope, x)

    assert computes_gelu(x)
    limit = 1e-6 if dtype == "float32" else 2e-2
    for found, expected in zip(values(erf_gelu, x), values(gelu, exact), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(tf.cast(found, "float64"), expected, atol=limit)
