"""Runs the real bert4keras, or Transformers: a script for a separate process.

    PYTHONPATH=<folder of bert4keras> python reference_process.py
    python reference_process.py transformers

bert4keras needs Keras 2 and replaces `sys.modules["keras"]`, so nothing of this
package can live in its process. Each line of standard input is a job in JSON, which
gets a new model. Each job is answered with one line of JSON on standard output, where
nothing else is printed:

    {"op": "predict", "ok": true, "seconds": 1.5, ...what the op reports}
    {"op": "predict", "ok": false, "seconds": 0.1, "error": "KeyError: 'roformer_v2'",
     "traceback": "..."}

A failed job does not stop the next. The process ends with its input. If the package
cannot be imported, the only line is `{"op": null, "ok": false, "error", "traceback"}`.
Exit codes: 0 every job succeeded, 1 a job failed, 3 it cannot be imported.

For bert4keras every op but "info" builds a model from these fields:

    bert_config   path of a bert_config.json
    kwargs        keywords of build_transformer_model, as JSON, but for
                  `checkpoint_path` and `return_keras_model`, which are set here
    checkpoint    prefix; loaded by bert4keras

The ops:

    info           reports bert4keras, tensorflow, tf_keras (versions) and
                   layer_norm_epsilon (of embedding and block norms)
    predict        batches: [{"inputs": npz, "outputs": npz}, ...], batch_size: int
                   (default 4). Inputs hold token_ids and segment_ids
                   `(batch, length)`. Outputs hold, in float32, what the model returns:
                   sequence, pooled, nsp, mlm. Reports outputs, their names in the
                   model's order.

For Transformers, "info" reports transformers, torch (versions) and is_causal: whether
its causal RoFormer sees no future token. "predict" has the fields `batches` and
`batch_size` as above, and

    folder         of Hugging Face
    architecture   name of a class, such as RoFormerForMaskedLM
    roles          names of its outputs to return, in its order
    fields         changes of the configuration
    order          optional: indices of the last axis of each output, in a new order
"""

import gc
import json
import os
import sys
import time
import traceback

# A module next to this script must not hide a module that bert4keras imports.
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
os.environ.setdefault("TF_KERAS", "1")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ROLES = {
    "Pooler-Dense": "pooled",
    "NSP-Proba": "nsp",
    "MLM-Activation": "mlm",
    "Output-MLM-Activation": "mlm",
}


class Reference:
    """The imported bert4keras; `ops` are names of methods, except "info"."""

    ops = ("info", "predict")

    def __init__(self):
        # TensorFlow imports them if they are installed; nothing here uses them.
        for name in ("jax", "matplotlib", "pandas", "sklearn"):
            sys.modules.setdefault(name, None)
        import bert4keras
        import numpy
        import tensorflow
        import tf_keras
        from bert4keras import layers, models
        from bert4keras.backend import K, keras

        self.np, self.tf, self.K, self.keras = numpy, tensorflow, K, keras
        self.layers, self.models = layers, models
        self.inputs = {"Input-Token": "token_ids", "Input-Segment": "segment_ids"}
        self.versions = {
            "bert4keras": bert4keras.__version__,
            "tensorflow": tensorflow.__version__,
            "tf_keras": tf_keras.__version__,
            "layer_norm_epsilon": layers.LayerNormalization().epsilon,
        }

    def run(self, job):
        """Runs one job; returns the report of its op."""
        op = job.get("op")
        if op not in self.ops:
            raise ValueError(f"op must be one of {', '.join(self.ops)}, got {op!r}")
        if op == "info":
            return self.versions
        self.K.clear_session()
        gc.collect()
        return getattr(self, op)(job, *self.build(job))

    def build(self, job):
        """The bert4keras object of a job, and its Keras model with weights."""
        transformer = self.models.build_transformer_model(
            job["bert_config"],
            job.get("checkpoint"),
            return_keras_model=False,
            **self.keywords(job),
        )
        return transformer, transformer.model

    # === Methods that the writer of goldens replaces ===

    def keywords(self, job):
        """Keywords of `build_transformer_model`."""
        return job["kwargs"]

    def names(self, job, model):
        """Names of the arrays that a model takes, and of its outputs."""
        outputs = [ROLES.get(name, "sequence") for name in model.output_names]
        return [self.inputs[name] for name in model.input_names], outputs

    def predict(self, job, _, model):
        input_names, names = self.names(job, model)
        # Keras's `predict` waits for seconds at its end.
        call = model.predict_on_batch
        if len(job["batches"]) > 1 and self.tf.executing_eagerly():
            call = self.for_any_length(model)
        for batch in job["batches"]:
            with self.np.load(batch["inputs"]) as arrays:
                inputs = [arrays[name] for name in input_names]
            size = job.get("batch_size", 4)
            batches = [
                call([array[at : at + size] for array in inputs])
                for at in range(0, len(inputs[0]), size)
            ]
            if len(names) == 1:
                batches = [[outputs] for outputs in batches]
            outputs = [
                self.np.concatenate(output) for output in zip(*batches, strict=True)
            ]
            self.np.savez(batch["outputs"], **dict(zip(names, outputs, strict=True)))
        return {"outputs": names}

    def for_any_length(self, model):
        """The model as a function of arrays, traced once for all lengths.

        `predict_on_batch` traces it again at the second length, which takes seconds for
        a base model. For a single length, that trace is faster.
        """

        @self.tf.function
        def function(inputs):
            return model(inputs, training=False)

        specs = [self.tf.TensorSpec([None, None], x.dtype) for x in model.inputs]
        function = function.get_concrete_function(specs)

        def call(arrays):
            tensors = [
                self.tf.constant(array, spec.dtype)
                for array, spec in zip(arrays, specs, strict=True)
            ]
            return self.tf.nest.map_structure(
                lambda output: output.numpy(), function(tensors)
            )

        return call


class Transformers:
    """The imported Transformers, on the CPU; it has the `ops` of `Reference`."""

    ops = ("info", "predict")

    def __init__(self):
        import numpy
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.np, self.torch, self.transformers = numpy, torch, transformers

    def run(self, job):
        """Runs one job; returns the report of its op."""
        op = job.get("op")
        if op not in self.ops:
            raise ValueError(f"op must be one of {', '.join(self.ops)}, got {op!r}")
        return getattr(self, op)(job)

    def info(self, _):
        names = ("transformers", "torch")
        versions = {name: getattr(self, name).__version__ for name in names}
        return {**versions, "is_causal": self.is_causal()}

    def is_causal(self):
        """True if a random model's earlier outputs ignore a change of a later token."""
        self.torch.manual_seed(0)
        config = self.transformers.RoFormerConfig(
            vocab_size=9,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=8,
            initializer_range=1.0,
            is_decoder=True,
        )
        model = self.transformers.RoFormerForCausalLM(config).eval()
        ids = self.np.array([[1, 2, 3, 4], [1, 2, 3, 5]])
        logits = self.outputs(model, ids, ids * 0)[0]
        return bool(self.np.allclose(logits[0, :-1], logits[1, :-1], atol=1e-5))

    def outputs(self, model, token_ids, segment_ids):
        """Outputs of a model by bert4keras's mask: position 0 is always visible."""
        visible = token_ids != 0
        visible[:, 0] = True
        with self.torch.no_grad():
            return [
                value.numpy()
                for value in model(
                    *map(self.long, (token_ids, visible, segment_ids)),
                    use_cache=False,
                    return_dict=False,
                )
            ]

    def long(self, array):
        return self.torch.tensor(self.np.asarray(array, "int64"))

    def predict(self, job):
        architecture = getattr(self.transformers, job["architecture"])
        config = self.transformers.RoFormerConfig.from_pretrained(job["folder"])
        for field, value in job["fields"].items():
            setattr(config, field, value)
        model = architecture.from_pretrained(
            job["folder"], config=config, dtype=self.torch.float32
        ).eval()
        for batch in job["batches"]:
            with self.np.load(batch["inputs"]) as arrays:
                inputs = [arrays[name] for name in ("token_ids", "segment_ids")]
            size = job.get("batch_size", 4)
            parts = [
                self.outputs(model, *(array[at : at + size] for array in inputs))
                for at in range(0, len(inputs[0]), size)
            ]
            outputs = [
                self.np.concatenate(output) for output in zip(*parts, strict=True)
            ]
            if "order" in job:
                outputs = [output[..., job["order"]] for output in outputs]
            # A decoder's cache may follow the compared outputs.
            self.np.savez(
                batch["outputs"], **dict(zip(job["roles"], outputs, strict=False))
            )
        return {"outputs": job["roles"]}


def main(make_reference=Reference):
    """Answers the jobs of standard input."""
    # Libraries print; only answers may reach standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    def failure(error):
        return {
            "ok": False,
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }

    try:
        reference = make_reference()
    except Exception as error:
        answer(op=None, **failure(error))
        return 3
    failed = False
    for line in sys.stdin:
        job, start = json.loads(line), time.perf_counter()
        try:
            result = {"ok": True, **reference.run(job)}
        except Exception as error:
            result = failure(error)
            failed = True
        seconds = round(time.perf_counter() - start, 3)
        answer(op=job.get("op"), seconds=seconds, **result)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Transformers if "transformers" in sys.argv[1:] else Reference))
