"""Files to fine-tune on."""

import keras
import numpy as np
from common import CHARACTER, to_json_lines

# What makes a small model smaller: one block, and no dropout.
ONE_BLOCK = {
    "num_layers": 1,
    "ignore": "bert/encoder/layer_[1-9]*",
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
GOOD = ["今天天气不错", "她在北京", "我们学习语言", "你说的是这个人"]
BAD = ["天气不", "在上海工作的人", "不是我们", "他们不学习"]
COUPLES = list(zip(GOOD, BAD, strict=True))


def load_small(kind, source=CHARACTER, **options):
    """One block of a checkpoint as a model of a class, without dropout."""
    return kind.from_preset(source, **{**ONE_BLOCK, **options})


def lines(*rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


REVIEWS = lines(*((text, "好") for text in GOOD), *((text, "坏") for text in BAD))
PAIRS = lines(*((a, b, n / 2) for n, (a, b) in enumerate(COUPLES)))
TRIPLETS = lines(*((a, a[1:], b, "BC"[n % 2]) for n, (a, b) in enumerate(COUPLES)))
NER = """\
她 O
在 O
北京 B-地

我 O
们 O
在 O
上 B-地
海 I-地

张 B-人
三 I-人
去 O
北京 B-地
"""
SPEECH = """\
她 r
在 v
北京 ns

我们\tr
学习\tv
语言\tn
"""
NESTED = to_json_lines(
    [
        {"text": "她在北京大学", "label": [[2, 4, "地"], [2, 6, "校"]]},
        {"text": "我们学习", "label": []},
        {"text": "在上海工作", "label": [{"start": 1, "end": 3, "label": "地"}]},
    ]
)
RELATIONS = to_json_lines(
    {"text": text, "spo_list": triples}
    for text, triples in (
        ("她在北京大学", [["她", "学校", "北京大学"], ["北京大学", "地", "北京"]]),
        ("我们学习", []),
        (
            "在上海工作",
            [{"subject": "上海", "predicate": "地", "object": {"@value": "工作"}}],
        ),
    )
)
QUESTIONS = to_json_lines(
    [
        {"question": "她在哪里？", "context": "她在北京。", "answer": "北京"},
        {"question": "他在哪里？", "context": "我们在上海工作", "answer": [3, 5]},
        {"question": "谁？", "context": "今天天气不错", "answer": None},
    ]
)
CHOICES = """\
context,question,choice1,choice2,choice3,label
她在北京工作。,她在哪里？,北京,上海,,北京
我们在上海学习。,我们在哪里？,北京,天安门,上海,2
今天天气不错。,天气？,不好,不错,,不错
"""


def assert_mean_of_adversarial_steps(model):
    """The optimizer's mean is of weights, not of where they were moved for a gradient.

    Args:
        model: classifier of two classes whose token embeddings are trained.
    """
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.75)
    model.compile(optimizer, adversarial_epsilon=3.0)
    table, weights = model.backbone.token_embedding.embeddings, []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(np.array(table))
    )
    model.fit(
        GOOD + BAD,
        [1] * 4 + [0] * 4,
        batch_size=8,
        epochs=3,
        callbacks=[keep],
        verbose=0,
    )
    expected = weights[0]
    for after in weights[1:]:
        expected = 0.75 * expected + 0.25 * after
    number = next(n for n, v in enumerate(model.trainable_variables) if v is table)
    mean = np.array(model.optimizer._model_variables_moving_average[number])
    np.testing.assert_allclose(mean, expected, atol=1e-6)
    assert np.abs(weights[-1] - mean).max() > 1e-4
