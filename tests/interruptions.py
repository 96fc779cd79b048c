"""Ways to interrupt a training in a test."""

import keras


class Interrupted(Exception):
    """The error that stands for the end of a process."""


class InterruptAfter(keras.callbacks.Callback):
    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left < 0:
            raise Interrupted
