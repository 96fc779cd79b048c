"""Steps of training against the real bert4keras: the same weights and the same loss.

The golden file holds what bert4keras's Adam with decoupled decay makes of a small
classifier; see tools/reference/finetuning.py. Both optimizers

- decay a weight from its value before the update: bert4keras subtracts `rate * decay *
  w` together with the step of Adam, Keras before it, which is the same sum, because the
  gradients were computed before;
- read a schedule at the number of updates done, so that a warm-up begins with the rate
  0;
- leave biases, gammas and betas undecayed, and decay the rows of tokens that a batch
  does not hold;
- clip by the norm of all gradients, in which those of a token that occurs twice are
  two.

Keras's own AdamW differs in two conventions, which ours takes from bert4keras:

- Keras adds epsilon to the root before it corrects for the zeros that the mean began
  with, bert4keras after: where bert4keras has 1e-6 Keras in effect has
  1e-6 / sqrt(1 - 0.999 ** step), 3e-5 at first;
- on TensorFlow, Keras squares the gradients of a token that occurs several times one by
  one, and not their sum, unless they were clipped by their norm. A token that occurs n
  times then moves up to sqrt(n) times as far as it should.
"""

import keras
import numpy as np
import pytest
from common import CHECKPOINTS, ROOT, load_golden

from roformer_keras.conversion.weights import weight_table
from roformer_keras.optimizers import make_optimizer
from roformer_keras.tasks import RoFormerTextClassifier

GOLDEN = ROOT / "tests" / "data" / "finetuning" / "golden.npz"
STEPS = 3


@pytest.fixture(scope="module")
def golden():
    return load_golden(GOLDEN)


def make_model(golden):
    arrays, metadata = golden
    model = RoFormerTextClassifier.from_preset(
        CHECKPOINTS / f"{metadata['source']}.zip",
        num_classes=arrays["head/bias"].size,
        layer_norm_epsilon=metadata["layer_norm_epsilon"],
        dropout=0.0,
        attention_dropout=0.0,
    )
    for variable in model.head_variables():
        variable.assign(arrays[f"head/{variable.path.split('/')[-1]}"])
    return model


def weights_of(model):
    """Every weight by its name in the golden file, `layer/index`."""
    variables = {variable.path: variable for variable in model.trainable_variables}
    weights = {
        f"{row.layer}/{row.index}": variables.pop(row.path)
        for row in weight_table(model.config, heads=())
    }
    for index, name in enumerate(("kernel", "bias")):
        weights[f"head/{index}"] = variables.pop(f"classes/{name}")
    assert not variables
    return {name: np.array(variable) for name, variable in weights.items()}


def train(golden, case, run_eagerly):
    """Losses of the steps, and all weights after each."""
    _, metadata = golden
    options = metadata["cases"][case]
    model, weights = make_model(golden), []
    model.compile(
        make_optimizer(
            metadata["learning_rate"],
            options["schedule"],
            weight_decay=metadata["weight_decay"],
            clip_norm=options["clip_norm"],
        ),
        run_eagerly=run_eagerly,
    )
    assert model.optimizer.epsilon == metadata["epsilon"]
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(weights_of(model))
    )
    texts, labels = metadata["texts"], metadata["labels"]
    history = model.fit(
        texts, labels, batch_size=len(texts), epochs=STEPS, callbacks=[keep], verbose=0
    )
    return history.history["loss"], weights


def assert_equal(golden, case, losses, weights, tolerance):
    arrays, _ = golden
    np.testing.assert_allclose(losses, arrays[f"{case}/losses"], rtol=0, atol=1e-5)
    for step, found in enumerate(weights, start=1):
        prefix = f"{case}/{step}/"
        assert found.keys() == {
            name.removeprefix(prefix) for name in arrays if name.startswith(prefix)
        }
        for name, value in found.items():
            np.testing.assert_allclose(
                value, arrays[prefix + name], rtol=0, atol=tolerance, err_msg=name
            )


def test_the_batch_is_padded_and_repeats_tokens(golden):
    arrays, metadata = golden
    model = make_model(golden)
    rows = model.make_rows([(text,) for text in metadata["texts"]])
    batch = rows.batch(range(len(metadata["texts"])))
    np.testing.assert_array_equal(batch["token_ids"], arrays["token_ids"])
    assert (arrays["token_ids"] == 0).any() and not batch["segment_ids"].any()


@pytest.mark.parametrize(
    ("case", "run_eagerly"),
    [("constant", False), ("warm-up", True), ("clipped", True)],
)
def test_steps_equal_bert4keras(golden, case, run_eagerly):
    losses, weights = train(golden, case, run_eagerly)
    # Below the 1e-5 by which a weight of 1 decays in a step.
    assert_equal(golden, case, losses, weights, tolerance=5e-6)
