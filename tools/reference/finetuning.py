"""tests/data/finetuning/golden.npz: steps of training by bert4keras.

A small classifier, without dropout, is trained on the same batch at every step.

    token_ids                       int32 `(rows, length)`: the padded batch
    head/kernel, head/bias          float32: initial weights of the head
    CASE/losses                     float32 `(steps,)`: before each update
    CASE/STEP/LAYER/INDEX           float32: each weight after STEP updates

metadata: `layer_norm_epsilon`; `source`, stem in tests/checkpoints; `texts`, `labels`,
`learning_rate`, `weight_decay`, `epsilon`; `layers`, name of each layer with weights ->
names of these; `cases`, name -> `schedule` and `clip_norm`.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

from tools.reference.bert4keras import make_tokenizer, save_golden, unzip
from tools.reference.training import make_classifier, make_optimizer, pad_rows

SOURCE = "roformer-small_L-2_H-8_A-2"
TEXTS = (
    "今天天气不错",
    "我爱北京天安门，天安门上太阳升",
    "不",
    "hello, 2020 北京!",
    "一二三四五六七八九十",
)
LABELS = (1, 2, 0, 1, 2)
STEPS = 3
# At this rate a step moves a weight by a hundred times the tolerance of the test.
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.01
# The default of bert4keras.
EPSILON = 1e-6
CASES = {
    "constant": {"schedule": [], "clip_norm": 0.0},
    # Rates of 0, 1 and 1/2.
    "warm-up": {"schedule": [(1, 1.0), (3, 0.0)], "clip_norm": 0.0},
    # Below the norm of the gradients.
    "clipped": {"schedule": [], "clip_norm": 0.1},
}


def write(output):
    rng = np.random.default_rng(0)
    arrays, layers = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = unzip(SOURCE, Path(scratch))
        config = json.loads((folder / "bert_config.json").read_text(encoding="utf-8"))
        tokenizer = make_tokenizer(folder)
        inputs = pad_rows([np.array(tokenizer.encode(text)[0]) for text in TEXTS])
        shape = (config["hidden_size"], max(LABELS) + 1)
        kernel = rng.normal(0, 0.3, shape).astype("float32")
        bias = rng.normal(0, 0.1, shape[1:]).astype("float32")
        for case, options in CASES.items():
            model = compiled_classifier(folder, kernel, bias, options)
            losses = []
            for step in range(1, STEPS + 1):
                losses.append(model.train_on_batch(inputs, np.array(LABELS)))
                for layer in filter(lambda layer: layer.weights, model.layers):
                    layers[layer.name] = [weight.name for weight in layer.weights]
                    for index, value in enumerate(layer.get_weights()):
                        arrays[f"{case}/{step}/{layer.name}/{index}"] = value
            arrays[f"{case}/losses"] = np.array(losses, "float32")
    metadata = {
        "layer_norm_epsilon": 1e-7,
        "source": SOURCE,
        "texts": TEXTS,
        "labels": LABELS,
        "learning_rate": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
        "epsilon": EPSILON,
        "layers": layers,
        "cases": CASES,
    }
    head = {"head/kernel": kernel, "head/bias": bias}
    arrays = {"token_ids": inputs[0].astype("int32"), **head, **arrays}
    save_golden(output / "data" / "finetuning" / "golden.npz", metadata, arrays)


def compiled_classifier(folder, kernel, bias, options):
    from bert4keras.backend import keras

    keras.backend.clear_session()
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    model = make_classifier(folder, "roformer", kernel, bias, **rates)
    clip = options["clip_norm"]
    optimizer = make_optimizer(
        LEARNING_RATE,
        WEIGHT_DECAY,
        options["schedule"],
        epsilon=EPSILON,
        bias_correction=True,
        **({"global_clipnorm": clip} if clip else {}),
    )
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer)
    return model
