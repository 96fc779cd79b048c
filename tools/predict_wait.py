"""How long Keras's `predict` waits for the tuning of `tf.data`; without this package.

    python -m tools.predict_wait

On TensorFlow `keras.Model.predict` wraps arrays in a `tf.data.Dataset`. A thread tunes
it, sleeps for 10, 20, 40, ... ms between its looks, and is waited for when the iterator
is deleted. So a call of one batch lasts until the end of such a sleep: 70, 150, 310,
630, 1,270 or 2,550 ms after its start. `predict_on_batch` has no dataset, and a dataset
with `options.autotune.enabled = False` has no thread.

The model multiplies matrices as often as its input says. For each number it prints the
milliseconds of the three, each the median of its calls.
"""

import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

# Products of matrices of this width, and calls of each.
PRODUCTS = (10, 25, 50, 100, 200, 400)
WIDTH = 500
CALLS = 7


def make_model():
    """A model that multiplies matrices as often as its input says."""
    import keras
    import tensorflow as tf

    matrix = tf.random.normal((WIDTH, WIDTH)) / WIDTH**0.5

    class Multiply(keras.layers.Layer):
        def call(self, x):
            def multiply(count, product):
                return count - 1, tf.matmul(product, matrix)

            _, product = tf.while_loop(
                lambda count, _: count > 0, multiply, (tf.reduce_max(x), matrix)
            )
            return x + tf.reduce_mean(product)

    inputs = keras.Input((1,))
    return keras.Model(inputs, Multiply()(inputs))


def untuned(x):
    """A dataset of one batch that `tf.data` does not tune."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensors(x).with_options(options)


def measure(model, products):
    """Way of calling -> the median of milliseconds."""
    import numpy as np

    x = np.full((1, 1), products, "float32")
    ways = {
        "predict": lambda: model.predict(x, verbose=0),
        "predict of an untuned dataset": lambda: model.predict(untuned(x), verbose=0),
        "predict_on_batch": lambda: model.predict_on_batch(x),
    }
    seconds = {name: [] for name in ways}
    for _ in range(1 + CALLS):
        for name, call in ways.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    # The first call traces.
    return {k: 1000 * statistics.median(found[1:]) for k, found in seconds.items()}


def main():
    import keras
    import tensorflow as tf

    print(f"Keras {keras.__version__}, TensorFlow {tf.__version__}; ms")
    model = make_model()
    for products in PRODUCTS:
        found = measure(model, products)
        if products == PRODUCTS[0]:
            print("  ".join(("products", *found)))
        numbers = (f"{found[name]:{len(name)},.0f}" for name in found)
        print("  ".join((f"{products:8,}", *numbers)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
