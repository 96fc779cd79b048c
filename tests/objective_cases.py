"""A tiny model, a batch and its training under each objective, on any backend.

    KERAS_BACKEND=jax python tests/objective_cases.py

prints what it finds as JSON, and has no TensorFlow.
"""

import sys

if __name__ == "__main__":
    # Importing it is now an ImportError, for Keras too, which would where it can.
    sys.modules["tensorflow"] = None

import json
import warnings

import keras
import numpy as np

from roformer_keras import models
from roformer_keras.base.config import RoFormerConfig, config_for_model
from roformer_keras.objectives import OBJECTIVES
from roformer_keras.text.tokenizer import RoFormerTokenizer

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳"
SPECIALS = ("[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>")
TOKENIZER = RoFormerTokenizer([*SPECIALS, *CHARACTERS])
TEACHER_TOKENIZER = RoFormerTokenizer([*SPECIALS, *CHARACTERS[::-1], "云", "腾"])
LENGTH = 10
PAIRS = (
    ("天地玄黄", "宇宙洪荒"),
    ("日月", "盈昃辰宿列张"),
    ("寒来暑往", "秋收冬藏闰余"),
    ("闰余成岁", "律吕调阳"),
)
LABELS = (0, 1, 4, 2)
# Those that are trained in bfloat16 too, which together have all the parts.
COARSE = ("mlm", "distillation", "classification")
# Those that are trained on other backends, which have all losses and models.
ELSEWHERE = ("mlm", "distillation", "classification", "cosent")


def make_model(model_class, tokenizer=TOKENIZER, seed=0, dtype=None, **fields):
    """Weights that NumPy draws: the same on every backend."""
    fields = {
        "vocabulary_size": tokenizer.vocabulary_size,
        "num_layers": 1,
        "num_heads": 2,
        "hidden_dim": 16,
        "intermediate_dim": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        **fields,
    }
    kind = getattr(models, model_class)
    settings = {"attention": fields["attention"]} if "attention" in fields else {}
    config = config_for_model(model_class, RoFormerConfig(**fields), **settings)
    model = kind.from_roformer_config(config, dtype)
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.3))
    return model


def model_for(objective, **options):
    """A model that an objective trains."""
    fields = getattr(objective, "model_fields", {})
    return make_model(objective.model_class, **{**fields, **options})


def make_objective(name, length=LENGTH, **options):
    if name == "distillation":
        options.setdefault(
            "teacher", make_model("RoFormerSim", TEACHER_TOKENIZER, 1, hidden_dim=8)
        )
        options.setdefault("teacher_tokenizer", TEACHER_TOKENIZER)
    return OBJECTIVES[name](TOKENIZER, length, **options)


def make_items(objective):
    """The items of `PAIRS`, each text a document where there are no pairs."""
    encode = objective.encoder(TOKENIZER, objective.rows.length)
    records = PAIRS
    if objective.fields == 3:
        records = [(*pair, str(n)) for pair, n in zip(PAIRS, LABELS, strict=True)]
    return [item for record in records for item in encode(record)]


def make_trainer(objective, model, optimizer="sgd", **options):
    """The compiled training model."""
    trainer = objective.training_model(model)
    if "labels" in {layer.name for layer in trainer.layers}:
        kernel = trainer.get_layer("labels").kernel
        kernel.assign(np.random.default_rng(2).normal(size=kernel.shape, scale=0.2))
    trainer.compile(optimizer, **objective.compile_options(), **options)
    # As `pretrain` does: TensorFlow traces a step that makes variables twice.
    trainer.optimizer.build(trainer.trainable_variables)
    return trainer


def batches(batch):
    """The same batch for ever."""
    while True:
        yield batch


def fit(trainer, batch, steps):
    """The loss at each of some steps on one batch."""
    return trainer.fit(
        batches(batch), steps_per_epoch=1, epochs=steps, shuffle=False, verbose=0
    ).history["loss"]


def fitted(name, steps, dtype=None, **options):
    """`fit` from the beginning, under an objective of this name."""
    objective = make_objective(name)
    model = model_for(objective, dtype=dtype)
    batch = objective.batch(make_items(objective), np.random.default_rng(0))
    # Adam would make whole steps of gradients that are nothing but rounding.
    optimizer = keras.optimizers.SGD(0.01)
    return fit(make_trainer(objective, model, optimizer, **options), batch, steps)


def main():
    warnings.simplefilter("error")
    # Keras's own variables, with NumPy 2.
    warnings.filterwarnings("ignore", message="__array__ implementation")
    losses = {"backend": keras.backend.backend()}
    for name in ELSEWHERE:
        losses[name] = fitted(name, 3)
    losses["distillation bfloat16"] = fitted("distillation", 2, "mixed_bfloat16")
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
