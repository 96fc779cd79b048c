"""Recomputes a layer in the backward pass instead of storing its activations."""

import keras
from keras import ops

from roformer_keras.base import quirks


def recomputed(function, layer, arguments):
    """Calls a function of a layer and keeps only its arguments for the backward pass.

    `keras.remat` alone would draw other dropout masks in the recomputation, and leave
    JAX a seed of an inner trace. So this function draws the seeds once, and passes the
    present values of the layer's variables.

    Source: Chen et al. 2016, arXiv:1604.06174.
    """
    generators = [
        sublayer.seed_generator
        for sublayer in quirks.nested_layers(layer)
        if isinstance(sublayer, keras.layers.Dropout) and sublayer.rate > 0
    ]
    # `next()` returns the current seed and advances the generator. The recomputation
    # starts from that same seed, and the scope discards its second advance.
    drawn = [(generator.state, generator.next()) for generator in generators]
    states = {id(state) for state, _ in drawn}
    trained = layer.trainable_variables
    fixed = [
        (variable, variable.value)
        for variable in layer.non_trainable_variables
        if id(variable) not in states
    ]
    names = list(arguments)

    # TensorFlow takes only gradients of a flat list of float tensors.
    def run(*tensors):
        count = len(names)
        values = zip(trained, tensors[count:], strict=True)
        # `wait` is 0 unless the input is NaN. It makes the seeds depend on the input:
        # else TensorFlow may draw the dropout masks of all blocks early, which raises
        # peak memory by about 6 %.
        wait = ops.isnan(ops.reshape(tensors[0], (-1,))[0])
        seeds = [(state, seed + ops.cast(wait, seed.dtype)) for state, seed in drawn]
        with keras.StatelessScope([*values, *fixed, *seeds]):
            return function(**dict(zip(names, tensors[:count], strict=True)))

    return keras.remat(run)(
        *arguments.values(), *(variable.value for variable in trained)
    )
