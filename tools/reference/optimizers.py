"""tests/data/bert4keras/optimizers.npz: bert4keras's optimizers, step by step.

Each case is an optimizer, its extensions from the inner to the outer one, and options.
The variables of VARIABLES get random gradients for STEPS steps; those of the first are
rows, as TensorFlow has them of an embedding, some of them twice.

    start/VARIABLE      values before the first step
    gradient/VARIABLE   `(STEPS, ...)`; of the embedding `(STEPS, rows, width)`
    rows                int32 `(STEPS, rows)`: which rows of the embedding those are
    CASE                a row for each step of SAVED: the values of all variables, one
                        after the other; a moving average has a last row, of what
                        `apply_ema_weights` gives in the end
    fit/ids, fit/labels a batch in each row
    fit/start           weights of `make_model` before it is trained, as in a CASE
    fit/CASE            weights after a step with each batch

metadata: `variables`, in their order; `cases`, `fits`: name -> [optimizer, extensions,
options]; `saved`, the steps.
"""

import itertools

import numpy as np

from tools.reference.bert4keras import import_optimizers, save_golden

STEPS, SAVED = 12, (1, 4, 12)
VARIABLES = {
    "Embedding-Token/embeddings": (6, 3),
    "Transformer-0-FeedForward/dense/kernel": (4, 5),
    "Transformer-0-FeedForward/dense/bias": (5,),
    "Transformer-0-FeedForward-Norm/gamma": (4,),
    # Two axes of one length, of which a factorization has to choose.
    "GlobalPointer/kernel": (3, 2, 3),
    "Head/bias": (3,),
}
EMBEDDING, *_, HEAD = VARIABLES
RATE = {"learning_rate": 0.01}
EXTENSIONS = {
    "weight_decay": {
        "weight_decay_rate": 0.1,
        "exclude_from_weight_decay": ["Norm", "bias"],
    },
    "layer_adaptation": {"exclude_from_layer_adaptation": ["Norm", "dense/bias"]},
    "piecewise_linear_lr": {"lr_schedule": {4: 1, 8: 0.5, 10: 0.1}},
    "gradient_accumulation": {"grad_accum_steps": 3},
    "exponential_moving_average": {"ema_momentum": 0.9},
}
ALL = ("weight_decay", "layer_adaptation", "piecewise_linear_lr")
ALL += ("gradient_accumulation", "exponential_moving_average")
PLAIN = {
    "adam": ["Adam", {}],
    "adam-defaults": ["Adam", {"learning_rate": 0.001}],
    "adam-momenta": ["Adam", {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-3}],
    "adam-biased": ["Adam", {"bias_correction": False}],
    "adam-decay": ["Adam", {"decay": 0.1}],
    "adam-clipnorm": ["Adam", {"clipnorm": 0.3, "epsilon": 0.1}],
    "adam-clipvalue": ["Adam", {"clipvalue": 0.2, "epsilon": 0.1}],
    "adam-global-clipnorm": ["Adam", {"global_clipnorm": 0.5, "epsilon": 0.1}],
    "adafactor": ["AdaFactor", {}],
    "adafactor-factored": ["AdaFactor", {"min_dim_size_to_factor": 3}],
    "adafactor-mean": ["AdaFactor", {"beta1": 0.9, "min_dim_size_to_factor": 3}],
    "adafactor-beta2": ["AdaFactor", {"beta2": 0.9, "min_dim_size_to_factor": 4}],
    "adafactor-free": ["AdaFactor", {"clipping_threshold": None, "epsilon2": 0.5}],
    "adafactor-low-threshold": ["AdaFactor", {"clipping_threshold": 0.5}],
    "adafactor-own-rate": ["AdaFactor", {"learning_rate": None}],
    "adafactor-unscaled": [
        "AdaFactor",
        {"learning_rate": None, "multiply_by_parameter_scale": False},
    ],
    "adafactor-excluded": [
        "AdaFactor",
        {"exclude_from_parameter_scale": ["Norm", "^Head"], "decay": 0.1},
    ],
}
CHAINS = {
    "everything": ["Adam", ALL],
    "everything-reversed": ["Adam", ALL[::-1]],
    "decayed": ["Adam", ["weight_decay"], {"exclude_from_weight_decay": []}],
    "lamb-biased": [
        "Adam",
        ["weight_decay", "layer_adaptation", "piecewise_linear_lr"],
        {"bias_correction": False},
    ],
    "roformer": ["Adam", ALL[:1] + ALL[2:4]],
    "roformer-v2": ["Adam", ALL[:4], {"bias_correction": False}],
    "adafactor-accumulated": ["AdaFactor", ["gradient_accumulation"], {"beta1": 0.9}],
    "adafactor-everything": [
        "AdaFactor",
        ALL,
        {"beta1": 0.9, "min_dim_size_to_factor": 3, "learning_rate": None},
    ],
    "constant-rate": ["Adam", ["piecewise_linear_lr"], {"lr_schedule": {0: 0.5}}],
}
FITS = {
    "roformer": ["Adam", ALL[:1] + ALL[2:4]],
    "roformer-v2": ["Adam", ALL[:4], {"bias_correction": False}],
    "adafactor": ["AdaFactor", ["gradient_accumulation"], {"beta1": 0.9}],
    "decayed": ["Adam", ["weight_decay"]],
    "average": ["Adam", ["exponential_moving_average"]],
}
BATCHES, ROWS, LENGTH, TOKENS = 8, 4, 5, 7


def make_cases(chains):
    """Name -> optimizer, extensions, and the options of all of them."""
    cases = {}
    for name, (base, names, *options) in chains.items():
        merged = RATE.copy()
        for extension in names:
            merged |= EXTENSIONS[extension]
        cases[name] = [base, list(names), merged | (options[0] if options else {})]
    return cases


def write(output):
    optimizers = import_optimizers()
    rng = np.random.default_rng(0)
    plain = {name: [base, [], options] for name, (base, options) in PLAIN.items()}
    single = {name: ["Adam", [name]] for name in EXTENSIONS}
    pairs = {
        f"{inner}+{outer}": ["Adam", [inner, outer]]
        for inner, outer in itertools.permutations(EXTENSIONS, 2)
    }
    cases, fits = make_cases(plain | single | pairs | CHAINS), make_cases(FITS)
    arrays = random_arrays(rng)
    steps = {
        name: take_steps(optimizers, *case, arrays) for name, case in cases.items()
    }
    trained = train_all(optimizers, fits, rng)
    metadata = {"variables": list(VARIABLES), "saved": SAVED}
    metadata |= {"cases": cases, "fits": fits}
    path = output / "data" / "bert4keras" / "optimizers.npz"
    save_golden(path, metadata, arrays | steps | trained)


def random_arrays(rng):
    arrays = {}
    for name, shape in VARIABLES.items():
        arrays[f"start/{name}"] = rng.normal(size=shape)
        arrays[f"gradient/{name}"] = rng.normal(size=(STEPS, *shape))
    # Of no length, which a layer adaptation must not divide by.
    arrays[f"start/{HEAD}"] *= 0
    arrays["gradient/Transformer-0-FeedForward-Norm/gamma"] *= 1e-6
    for part, steps in (("kernel", (2, 3)), ("bias", (0, 5, 6, 7, 8))):
        arrays[f"gradient/Transformer-0-FeedForward/dense/{part}"][list(steps)] = 0
    arrays["gradient/Transformer-0-FeedForward/dense/kernel"][:, ::2] *= 0.01
    width = VARIABLES[EMBEDDING][1]
    arrays[f"gradient/{EMBEDDING}"] = rng.normal(size=(STEPS, 4, width))
    arrays = {name: value.astype("float32") for name, value in arrays.items()}
    return arrays | {"rows": rng.integers(0, 5, size=(STEPS, 4)).astype("int32")}


def make_optimizer(optimizers, base, names, options):
    made = getattr(optimizers, base)
    for name in names:
        made = getattr(optimizers, f"extend_with_{name}")(made)
    return made(**options)


def take_steps(optimizers, base, names, options, arrays):
    import tensorflow as tf

    optimizer = make_optimizer(optimizers, base, names, options)
    variables = [tf.Variable(arrays[f"start/{name}"], name=name) for name in VARIABLES]
    saved = []
    for step in range(STEPS):
        gradients = [
            tf.constant(arrays[f"gradient/{name}"][step]) for name in VARIABLES
        ]
        rows, shape = tf.constant(arrays["rows"][step]), VARIABLES[EMBEDDING]
        gradients[0] = tf.IndexedSlices(gradients[0], rows, tf.constant(shape))
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if step + 1 in SAVED:
            saved.append(flat(variables))
    if "exponential_moving_average" in names:
        optimizer.apply_ema_weights()
        saved.append(flat(variables))
        optimizer.reset_old_weights()
        assert np.array_equal(flat(variables), saved[-2])
    return np.stack(saved)


def flat(values):
    """All values one after the other."""
    return np.concatenate([np.ravel(value) for value in values])


def make_model(layers, Model):
    """A small model, of the layers of Keras 2 or 3, with names as bert4keras has."""
    ids = layers.Input(shape=(LENGTH,), dtype="int32", name="Input-Token")
    x = layers.Embedding(TOKENS, 4, name="Embedding-Token")(ids)
    x = layers.GlobalAveragePooling1D(name="Mean")(x)
    x = layers.Dense(6, activation="tanh", name="Pooler-Dense")(x)
    x = layers.LayerNormalization(name="Pooler-Norm")(x)
    return Model(ids, layers.Dense(3, activation="softmax", name="Head")(x))


def train_all(optimizers, fits, rng):
    from bert4keras.backend import keras

    # Token 0 is in no batch: its gradient is zero.
    ids = rng.integers(1, TOKENS, size=(BATCHES, ROWS, LENGTH)).astype("int32")
    labels = rng.integers(0, 3, size=(BATCHES, ROWS)).astype("int32")
    arrays = {"fit/ids": ids, "fit/labels": labels}
    model = make_model(keras.layers, keras.models.Model)
    start = [rng.normal(size=w.shape).astype("float32") for w in model.weights]
    arrays["fit/start"] = flat(start)
    for name, case in fits.items():
        model = make_model(keras.layers, keras.models.Model)
        model.set_weights(start)
        optimizer = make_optimizer(optimizers, *case)
        # Its AdaFactor makes variables at each step, which a graph must not.
        model.compile(optimizer, "sparse_categorical_crossentropy", run_eagerly=True)
        for batch in zip(ids, labels, strict=True):
            model.train_on_batch(*batch)
        if hasattr(optimizer, "apply_ema_weights"):
            optimizer.apply_ema_weights()
        arrays[f"fit/{name}"] = flat(model.get_weights())
    return arrays
