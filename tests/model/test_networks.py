"""Networks for other runtimes give what Keras gives, for every kind of model."""

from typing import get_args

import keras
import numpy as np
import onnxruntime
import pytest
from tiny_models import TOKENIZER, UNILM, backbone, batch, draw_weights

import roformer_keras
from roformer_keras import RoFormerCausalLM, RoFormerMaskedLM, RoFormerSim
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.task_registry import Pooling
from roformer_keras.engines.network import write_model
from roformer_keras.engines.onnx_graph import OnnxGraph
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.engines.programs import OpenVINOProgram
from roformer_keras.export.model import served_model
from roformer_keras.tasks import TASKS

BACKBONES = {
    "plain": {},
    "pooler-nsp": {"pooler_activation": "tanh", "with_nsp": True},
    "causal": {"attention": "causal"},
    "unilm": UNILM,
    "shared-segments": {"shared_segment_embeddings": True},
    "residual-scores": {"residual_attention_scores": True},
    "embedding-size": {"embedding_dim": 8},
    "v2": {"model_type": "roformer_v2"},
    "no-rotation": {"rotary": False, "activation": "silu"},
    "gelu": {"activation": "gelu_tanh"},
    "key-size": {"attention_key_size": 6, "rotary_base": 500.0},
}
LANGUAGE_MODELS = {
    RoFormerMaskedLM: {},
    RoFormerCausalLM: {"attention": "causal", "tie_word_embeddings": False},
    RoFormerSim: UNILM,
}
OPTIONS = {
    "RoFormerTextClassifier": [
        {"classes": ["a", "b"], "pooling": "mean"},
        {"classes": ["a", "b"], "head_activation": "gelu"},
    ],
    "RoFormerTokenClassifier": [
        {"labels": ["X"]},
        {"labels": ["X"], "crf": True},
        {"tags": ["n", "v", "m"]},
    ],
    "RoFormerSentenceEncoder": [
        {"pooling": one} for one in (*get_args(Pooling), "last+first+mean")
    ],
    "RoFormerMultipleChoice": [
        {},
        {"pooling": "last_position", "head_activation": "tanh"},
    ],
    "RoFormerQuestionAnswerer": [{}, {"text_segment": 0}],
    "RoFormerSpanExtractor": [{"labels": ["X", "Y"]}],
    "RoFormerRelationExtractor": [{"labels": ["X", "Y"]}],
}


def models():
    """One of each kind, by name."""
    for name, fields in BACKBONES.items():
        yield name, backbone(**fields)
    for kind, fields in LANGUAGE_MODELS.items():
        yield kind.__name__, kind(backbone(**fields))
    for task in TASKS.values():
        for options in OPTIONS.get(task.class_name, [{}]):
            kind = getattr(roformer_keras, task.class_name)
            yield f"{task.class_name} {options}", kind(backbone(), TOKENIZER, **options)


def by_openvino(model, inputs):
    graph = OpenVINOGraph()
    write_model(graph, model)
    program = OpenVINOProgram(graph.finish())
    return program.run(program.start(), inputs)


def by_onnx_runtime(model, inputs):
    graph = OnnxGraph()
    write_model(graph, model)
    session = onnxruntime.InferenceSession(graph.finish())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.slow
def test_outputs_are_those_of_keras():
    wrong, inputs = [], batch()
    for name, model in models():
        draw_weights(model)
        served = served_model(model)
        expected = served(inputs)
        for run in (by_openvino, by_onnx_runtime):
            outputs = run(served, inputs)
            if outputs.keys() != expected.keys():
                wrong.append(f"{name} {run.__name__}: {sorted(outputs)}")
                continue
            for key, output in outputs.items():
                values = keras.ops.convert_to_numpy(expected[key])
                if not np.allclose(output, values, rtol=1e-5, atol=1e-5):
                    gap = np.abs(output - values).max()
                    wrong.append(f"{name} {run.__name__} {key}: {gap:.1e}")
    assert wrong == []


def test_a_layer_that_no_network_knows():
    plain = backbone()
    hidden = keras.layers.LayerNormalization()(plain.output)
    model = keras.Model(plain.input, {"outputs": hidden})
    with pytest.raises(ConfigurationError, match=r"do not know .*Normalization"):
        write_model(OpenVINOGraph(), model)
