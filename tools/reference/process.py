"""The library's `reference_process.py`, with more ops that write the goldens.

    python -m tools.reference.process [--graph]

write           output: prefix of a TF1 checkpoint, by save_weights_as_checkpoint
save_h5         output: path; `model.save_weights` as HDF5. A name that ends in
                .weights.h5 gets the newer layout that tf-keras writes under it.
save_model_h5   output: path; `model.save` as HDF5
save_object     output: prefix of a TF object checkpoint, by `model.save_weights`
save_tf         output: folder of a SavedModel, by `model.save`; optional train: bool,
                whether a wrapped model is trained before, with a rate of 0

"write" needs graph mode (`--graph`); users run bert4keras eagerly today. The two modes
differ by rounding, up to 2e-6; `.weights.h5` can only be written eagerly.
"""

import sys

from roformer_keras.verification.reference_process import Reference, main


class Writer(Reference):
    ops = (
        *Reference.ops,
        "write",
        "save_h5",
        "save_model_h5",
        "save_object",
        "save_tf",
    )

    def __init__(self):
        if "--graph" in sys.argv:
            import tensorflow as tf

            # bert4keras writes checkpoints by TF1 calls under their TF1 names.
            tf.compat.v1.disable_eager_execution()
            tf.Session = tf.compat.v1.Session
            tf.train.Saver = tf.compat.v1.train.Saver
        super().__init__()

    def write(self, job, transformer, _):
        from tensorflow.compat.v1.keras.backend import get_session

        with get_session().as_default():
            transformer.save_weights_as_checkpoint(job["output"])
        return {}

    def save_h5(self, job, _, model):
        model.save_weights(job["output"], save_format="h5")
        return {}

    def save_model_h5(self, job, _, model):
        model.save(job["output"], save_format="h5")
        return {}

    def save_object(self, job, _, model):
        model.save_weights(job["output"], save_format="tf")
        return {}

    def save_tf(self, job, _, model):
        if job.get("train"):
            optimizer = self.keras.optimizers.legacy.Adam(0.0)
            loss = "sparse_categorical_crossentropy"
            model.compile(optimizer, loss, metrics=["accuracy"])
            ids = self.np.ones((2, 4))
            model.train_on_batch([ids, ids * 0], self.np.zeros(2))
        model.save(job["output"], save_format="tf")
        return {}


if __name__ == "__main__":
    sys.exit(main(Writer))
