"""The fast gradient method: each update is made where the loss is a little worse.

The gradient of the loss in the token embeddings says in which direction they hurt most.
They are moved by a step of a given length in that direction, the update is computed and
applied there, and the step is undone: in the running mean of the weights too,
where the optimizer keeps one.

Source: Miyato et al. 2017, arXiv:1605.07725; as in bert4keras's examples, the step
moves the whole embedding table.
"""

import keras
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.optimizers import batch_count


def train_step(model, update, embeddings, epsilon, *arguments):
    """A train step of Keras at moved embeddings."""
    refuse(
        not any(embeddings is variable for variable in model.trainable_variables),
        "adversarial training moves the token embeddings, which are frozen: "
        "unfreeze them, or set adversarial_epsilon=0",
    )
    refuse(
        _updating(model.optimizer).ema_overwrite_frequency,
        "adversarial training undoes its step after each update, which "
        "ema_overwrite_frequency would make a part of the weights: leave it out, "
        "or set adversarial_epsilon=0",
    )
    step = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    return step[keras.backend.backend()](model, update, embeddings, epsilon, *arguments)


def _step(gradient, epsilon):
    norm = ops.sqrt(ops.sum(ops.square(gradient)))
    return epsilon * gradient / (norm + 1e-8)


def _tensorflow(model, update, embeddings, epsilon, data):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = _loss(model, data)
    gradient = tf.convert_to_tensor(tape.gradient(loss, embeddings.value))
    return _update_at(gradient, model, update, embeddings, epsilon, data)


def _torch(model, update, embeddings, epsilon, data):
    import torch

    (gradient,) = torch.autograd.grad(_loss(model, data), [embeddings.value])
    return _update_at(gradient, model, update, embeddings, epsilon, data)


def _loss(model, data):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = model(x, training=True)
    return model.compute_loss(x, y, y_pred, sample_weight, training=True)


def _update_at(gradient, model, update, embeddings, epsilon, data):
    """An update where the embeddings are moved, for backends that assign variables."""
    step = ops.cast(_step(gradient, epsilon), embeddings.dtype)
    optimizer = _updating(model.optimizer)
    before = ops.copy(batch_count(optimizer))
    embeddings.assign_add(step)
    logs = update(data)
    embeddings.assign_sub(step)
    # It is built with the first update.
    mean = _mean_of(model, embeddings)
    if mean is not None:
        share = _share(optimizer, before, batch_count(optimizer))
        mean.assign_sub(ops.cast(share, mean.dtype) * ops.cast(step, mean.dtype))
    return logs


def _jax(model, update, embeddings, epsilon, state, data):
    import jax

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    variables, frozen, optimizer, metrics = state
    at = next(
        number
        for number, variable in enumerate(model.trainable_variables)
        if variable is embeddings
    )

    def loss_of(table):
        moved = [*variables[:at], table, *variables[at + 1 :]]
        loss, _ = model.compute_loss_and_updates(
            moved,
            frozen,
            metrics,
            x,
            y,
            sample_weight,
            training=True,
            optimizer_variables=optimizer,
        )
        return loss

    step = _step(jax.grad(loss_of)(variables[at]), epsilon)
    moved = [*variables[:at], variables[at] + step, *variables[at + 1 :]]
    logs, (trained, *rest) = update((moved, frozen, optimizer, metrics), data)
    trained = [*trained[:at], trained[at] - step, *trained[at + 1 :]]
    mean = _mean_of(model, embeddings)
    if mean is not None:
        owner = _updating(model.optimizer)
        numbers = {id(v): n for n, v in enumerate(model.optimizer.variables)}
        count, mean_number = numbers[id(batch_count(owner))], numbers[id(mean)]
        after = list(rest[1])
        share = _share(owner, optimizer[count], after[count])
        after[mean_number] = after[mean_number] - ops.cast(
            share * step, after[mean_number].dtype
        )
        rest[1] = after
    return logs, (trained, *rest)


def _updating(optimizer):
    """Itself, or if it scales losses the one inside, which updates."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _mean_of(model, embeddings):
    """The optimizer's running mean of the embeddings; None if it has none."""
    optimizer = _updating(model.optimizer)
    if not optimizer.use_ema:
        return None
    name = f"{embeddings.path.replace('/', '_')}_average"
    for variable in optimizer.variables:
        if variable.name == name:
            return variable
    raise ValueError("the optimizer was built on other variables than the model's")


def _share(optimizer, before, after):
    """Share of the weights that an update put into their running mean."""
    if hasattr(optimizer, "mean_momentum"):
        momentum = optimizer.mean_momentum(before)
    else:
        # Keras's own take the first weights whole, and move the mean in every batch.
        parts = optimizer.gradient_accumulation_steps or 1
        is_first = ops.equal(ops.floor_divide(before, parts), 0)
        momentum = ops.where(is_first, 0.0, optimizer.ema_momentum)
    share = 1.0 - ops.cast(momentum, "float32")
    return ops.where(ops.equal(before, after), 0.0, share)
