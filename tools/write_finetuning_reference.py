"""Regenerates tests/data/finetuning/golden.npz: steps of training by bert4keras.

    python tools/write_finetuning_reference.py

It starts itself again in a process with bert4keras (`.reference/bert4keras-0.11.5`, or
ROFORMER_KERAS_REFERENCE), which trains a classifier on a small RoFormer, without
dropout, on the same batch at every step, with its own Adam and decoupled decay.

golden.npz holds

    metadata       JSON: `versions`, `layer_norm_epsilon`; `source` (stem in
                   tests/checkpoints), `texts`, `labels`, `learning_rate`,
                   `weight_decay`, `epsilon`; `layers`: name of each layer of
                   bert4keras that has weights -> names of these; `cases`: name ->
                   `schedule` and `clip_norm`
    token_ids      int32 `(rows, length)`: the batch, padded
    head/kernel    float32 `(hidden, classes)`: of the head, to begin with
    head/bias      float32 `(classes,)`

and of every case, where step 0 is before the first update:

    <case>/losses                     float32 `(steps,)`: of the batch, before updates
    <case>/<step>/<layer>/<index>     float32: each weight after that many updates
"""

import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from bert4keras_classifier import make_classifier, make_optimizer, padded
from golden import versions, write_with_bert4keras

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = ROOT / "tests" / "checkpoints"
OUTPUT = ROOT / "tests" / "data" / "finetuning" / "golden.npz"

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
# So large that a step moves a weight by a hundred times the tolerance of the test.
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01
# bert4keras's own.
EPSILON = 1e-6
CASES = {
    "constant": {"schedule": [], "clip_norm": 0.0},
    # Rates of 0, 1 and 1/2.
    "warm-up": {"schedule": [(1, 1.0), (3, 0.0)], "clip_norm": 0.0},
    # Below the norm of the gradients.
    "clipped": {"schedule": [], "clip_norm": 0.1},
}


def write(path):
    from bert4keras.backend import keras
    from bert4keras.tokenizers import Tokenizer

    rng = np.random.default_rng(0)
    arrays, layers = {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        with zipfile.ZipFile(CHECKPOINTS / f"{SOURCE}.zip") as archive:
            archive.extractall(temporary)
        folder = Path(temporary, SOURCE)
        config = json.loads((folder / "bert_config.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer(str(folder / "vocab.txt"), do_lower_case=True)
        inputs = padded([np.array(tokenizer.encode(text)[0]) for text in TEXTS])
        shape = (config["hidden_size"], max(LABELS) + 1)
        kernel = rng.normal(0, 0.3, shape).astype("float32")
        bias = rng.normal(0, 0.1, shape[1:]).astype("float32")
        for case, options in CASES.items():
            keras.backend.clear_session()
            model = make_classifier(
                folder,
                "roformer",
                kernel,
                bias,
                dropout_rate=0.0,
                attention_dropout_rate=0.0,
            )
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
            losses = []
            for step in range(1, STEPS + 1):
                losses.append(model.train_on_batch(inputs, np.array(LABELS)))
                for layer in model.layers:
                    if not layer.weights:
                        continue
                    layers[layer.name] = [weight.name for weight in layer.weights]
                    for index, value in enumerate(layer.get_weights()):
                        arrays[f"{case}/{step}/{layer.name}/{index}"] = value
            arrays[f"{case}/losses"] = np.array(losses, "float32")
            print(case, *(f"{loss:.6f}" for loss in losses))
    metadata = {
        "versions": versions(),
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
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        metadata=json.dumps(metadata, ensure_ascii=False),
        token_ids=inputs[0].astype("int32"),
        **{"head/kernel": kernel, "head/bias": bias},
        **arrays,
    )


if __name__ == "__main__":
    write_with_bert4keras(__file__, __doc__, OUTPUT, write)
