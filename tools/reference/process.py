"""The library's `reference_process.py`, with more fields, and ops that write goldens.

    python -m tools.reference.process [--graph]

Jobs may have more fields:

weights         file of `model.save_weights`; loaded by Keras after the checkpoint
seed            int; draws every weight that neither of the two has set
wrap            "dense", a user's classification head on the first position, or
                "nested", the same with the model called as one layer
kwargs          `layer_norm_cond` is given as the width of that input; a
                `compound_tokens` item `[[ids], [weights]]` means a weighted mean

Inputs of "predict" may hold position_ids `(batch, length)` and layer_norm_cond
`(batch, width)`; a wrapped model returns head. The ops:

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
        self.inputs |= {
            "Input-Position": "position_ids",
            "Input-Condition": "layer_norm_cond",
        }

    def build(self, job):
        transformer, model = super().build(job)
        known = []
        if job.get("checkpoint"):
            known += self.checkpoint_weights(transformer)
        if job.get("weights"):
            model.load_weights(job["weights"])
            known += model.weights
        if job.get("wrap"):
            model = self.wrapped(transformer.model, job["wrap"])
        if job.get("seed") is not None:
            self.draw(model.weights, known, job["seed"])
        return transformer, model

    def names(self, job, model):
        if job.get("wrap") == "nested":
            return list(self.inputs.values())[: len(model.inputs)], ["head"]
        taken, outputs = super().names(job, model)
        return taken, ["head"] if job.get("wrap") else outputs

    def keywords(self, job):
        """`build_transformer_model` keywords, with what JSON cannot hold put in."""
        keywords = dict(job.get("kwargs", {}))
        width = keywords.get("layer_norm_cond")
        if width is not None:
            condition = self.keras.layers.Input((width,), name="Input-Condition")
            keywords["layer_norm_cond"] = condition
            keywords["additional_input_layers"] = condition
        if keywords.get("compound_tokens"):
            keywords["compound_tokens"] = [
                tuple(item) if isinstance(item[0], list) else item
                for item in keywords["compound_tokens"]
            ]
        return keywords

    def checkpoint_weights(self, transformer):
        """The weights that bert4keras's own mapping fills from a checkpoint."""
        return [
            weight
            for name, variables in transformer.variable_mapping().items()
            if name in transformer.layers
            for weight, _ in zip(
                transformer.layers[name].trainable_weights, variables, strict=False
            )
        ]

    def wrapped(self, model, how):
        """`model` with a user's classification head on position 0."""
        keras = self.keras
        if how == "dense":
            inputs, sequence = model.inputs, model.output
        elif how == "nested":
            inputs = [keras.layers.Input((None,)) for _ in model.inputs]
            sequence = model(inputs)
        else:
            raise ValueError(f"wrap must be 'dense' or 'nested', got {how!r}")
        first = keras.layers.Lambda(lambda x: x[:, 0])(sequence)
        scores = keras.layers.Dense(2, activation="softmax")(first)
        return keras.models.Model(inputs, scores)

    def draw(self, weights, known, seed):
        """Draws the unknown weights as a trained model has them.

        Kernels keep the variance of their inputs, so attention is far from uniform;
        embeddings have BERT's 0.02, at which the norm's epsilon shows; no bias is 0 and
        no scale 1, where a missing term would not show.
        """
        rng = self.np.random.default_rng(seed)
        known = {id(weight) for weight in known}
        drawn = []
        for weight in weights:
            if id(weight) in known:
                continue
            shape = self.K.int_shape(weight)
            values = rng.standard_normal(shape)
            name = weight.name.split("/")[-1].split(":")[0]
            if name == "gamma":
                values = 1 + 0.1 * values
            elif len(shape) == 1:
                values = 0.05 * values
            elif name == "embeddings":
                values = 0.02 * values
            else:
                values = values / shape[0] ** 0.5
            drawn.append((weight, values.astype("float32")))
        self.K.batch_set_value(drawn)

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
