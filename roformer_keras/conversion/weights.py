"""The table of weights: every weight of a model, with its name in every format.

A weight has a name in a checkpoint (`bert/encoder/layer_0/...`, which readers return
and writers expect), a variable path in the Keras model, a dataset in the HDF5 files of
presets and of Keras, a name in PyTorch models of Hugging Face, and an index in a layer
of bert4keras, for the files that bert4keras's users saved. The configuration alone
determines the table: no model is built.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from roformer_keras.base.config import MODEL_FIELDS, RoFormerConfig

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
SEGMENT_EMBEDDINGS = "bert/embeddings/token_type_embeddings"
# Only BERT has it.
POSITION_EMBEDDINGS = "bert/embeddings/position_embeddings"
OUTPUT_BIAS = "cls/predictions/output_bias"
# The embedding of an output that is not tied to the token embedding.
OUTPUT_EMBEDDINGS = "cls/predictions/decoder/weights"
# PyTorch's names of the output and its bias, which it stores twice.
PYTORCH_DECODER = "cls.predictions.decoder.weight"
PYTORCH_BIAS = "cls.predictions.bias"
PYTORCH_DECODER_BIAS = "cls.predictions.decoder.bias"

HEADS = ("pooler", "nsp", "mlm")
# Prefix of the variable paths in the head of a task.
TASK_PREFIX = "task/"
# Prefix of a backbone's datasets in Keras's files of a larger model.
KERAS_BACKBONE = "layers/ro_former_backbone/"
# Prefix of the MLM head's datasets in these files.
KERAS_MLM = "layers/masked_lm_head/"


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One row of the table."""

    name: str
    path: str
    shape: tuple[int, ...]
    dataset: str
    layer: str = ""
    index: int = 0
    attribute: str = ""
    head: str | None = None
    transposed: bool = False
    optional: bool = False

    @property
    def checkpoint_shape(self) -> tuple[int, ...]:
        """Shape of the tensor in a checkpoint."""
        return self.shape[::-1] if self.transposed else self.shape

    @property
    def huggingface(self) -> str:
        """Name in a PyTorch model of Hugging Face."""
        if self.head == "task":
            return _HUGGINGFACE_HEADS.get(self.path, self.path)
        name = self.name
        for pattern, replacement in _HUGGINGFACE:
            name = re.sub(pattern, replacement, name)
        return name.replace("/", ".")

    @property
    def huggingface_transposed(self) -> bool:
        """True if PyTorch holds the transpose of the tensor in a checkpoint."""
        return self.path.endswith("/kernel") and not self.transposed


# Patterns of a checkpoint name -> PyTorch's name, applied one after another.
_HUGGINGFACE = (
    (r"^bert/encoder/embedding_hidden_mapping_in/", "roformer/embeddings_project/"),
    (r"^bert/", "roformer/"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"/output_(weights|bias)$", r"/\1"),
    (r"/(kernel|gamma|weights)$", "/weight"),
    (r"/beta$", "/bias"),
    (r"(_embeddings)$", r"\1/weight"),
)
# Patterns for the heads of tasks that both libraries have.
_HUGGINGFACE_HEADS = {
    "tags/kernel": "classifier.weight",
    "tags/bias": "classifier.bias",
    "ends/kernel": "qa_outputs.weight",
    "ends/bias": "qa_outputs.bias",
    "choice/kernel": "classifier.weight",
    "choice/bias": "classifier.bias",
    "summary/kernel": "sequence_summary.summary.weight",
    "summary/bias": "sequence_summary.summary.bias",
    "dense/kernel": "classifier.dense.weight",
    "dense/bias": "classifier.dense.bias",
    "out_proj/kernel": "classifier.out_proj.weight",
    "out_proj/bias": "classifier.out_proj.bias",
}


def weight_table(
    config: RoFormerConfig, heads: Iterable[str] = HEADS
) -> tuple[Weight, ...]:
    """Every weight of a model with this configuration and these heads."""
    table = _Table(config)
    table.add_embeddings()
    for number in range(config.num_layers):
        table.add_block(number)
    if "pooler" in heads:
        table.add_pooler()
    if "nsp" in heads:
        table.add_nsp()
    if "mlm" in heads:
        table.add_masked_lm()
    return tuple(table.rows)


def model_heads(model: str, config: RoFormerConfig) -> tuple[str, ...]:
    """The heads of a model class with this configuration."""
    heads = {
        "pooler": config.pooler_activation is not None,
        "nsp": config.with_nsp,
        "mlm": model in MODEL_FIELDS and model != "RoFormerBackbone",
    }
    return tuple(head for head in HEADS if heads[head])


def task_rows(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Weight, ...]:
    """Rows for the head of a fine-tuned model on a backbone."""
    return tuple(
        Weight(
            name=f"{TASK_PREFIX}{path}",
            path=path,
            shape=tuple(shape),
            dataset=path,
            head="task",
        )
        for path, shape in shapes.items()
    )


# === The encoder and its heads ===

# Variable path in a block -> checkpoint name, bert4keras's layer and its attribute.
_BLOCK = {
    "attention/query": ("attention/self/query", "MultiHeadSelfAttention", "q_dense/"),
    "attention/key": ("attention/self/key", "MultiHeadSelfAttention", "k_dense/"),
    "attention/value": ("attention/self/value", "MultiHeadSelfAttention", "v_dense/"),
    "attention/output_dense": (
        "attention/output/dense",
        "MultiHeadSelfAttention",
        "o_dense/",
    ),
    "attention_norm": ("attention/output/LayerNorm", "MultiHeadSelfAttention-Norm", ""),
    "feed_forward/intermediate_dense": (
        "intermediate/dense",
        "FeedForward",
        "i0_dense/",
    ),
    "feed_forward/output_dense": ("output/dense", "FeedForward", "o_dense/"),
    "feed_forward_norm": ("output/LayerNorm", "FeedForward-Norm", ""),
}


class _Table:
    """Rows of an encoder, collected in the order of computation."""

    def __init__(self, config: RoFormerConfig):
        self.rows: list[Weight] = []
        self._config = config
        self._counts: Counter[str] = Counter()

    def add_embeddings(self):
        config, width = self._config, self._config.input_dim
        tables = [
            (WORD_EMBEDDINGS, "token_embedding", config.vocabulary_size, "Token"),
            (SEGMENT_EMBEDDINGS, "segment_embedding", config.num_segments, "Segment"),
        ]
        if config.shared_segment_embeddings:
            tables.pop()
        for name, path, rows, layer in tables:
            path, layer = f"{path}/embeddings", f"Embedding-{layer}"
            self._add(name, path, (rows, width), layer, "embeddings")
        self._add_norm(
            "bert/embeddings/LayerNorm", "embedding_norm", width, "Embedding-Norm"
        )
        if width != config.hidden_dim:
            self._add_dense(
                "bert/encoder/embedding_hidden_mapping_in",
                "embedding_mapping",
                (width, config.hidden_dim),
                "Embedding-Mapping",
            )

    def add_block(self, number: int):
        config, hidden = self._config, self._config.hidden_dim
        key, value = (
            config.num_heads * dim for dim in (config.key_dim, config.head_dim)
        )
        # The shape of a kernel, or of the parameters of a norm.
        shapes: dict[str, tuple[int, ...]] = {
            "attention/query": (hidden, key),
            "attention/key": (hidden, key),
            "attention/value": (hidden, value),
            "attention/output_dense": (value, hidden),
            "attention_norm": (hidden,),
            "feed_forward/intermediate_dense": (hidden, config.intermediate_dim),
            "feed_forward/output_dense": (config.intermediate_dim, hidden),
            "feed_forward_norm": (hidden,),
        }
        for block_path, (name, layer, attribute) in _BLOCK.items():
            name = f"bert/encoder/layer_{number}/{name}"
            path = f"transformer_layer_{number}/{block_path}"
            layer = f"Transformer-{number}-{layer}"
            if attribute:
                self._add_dense(name, path, shapes[block_path], layer, attribute)
            else:
                (width,) = shapes[block_path]
                self._add_norm(name, path, width, layer)

    def add_pooler(self):
        shape = (self._config.hidden_dim, self._config.hidden_dim)
        self._add_dense(
            "bert/pooler/dense", "pooler/dense", shape, "Pooler-Dense", head="pooler"
        )

    def add_nsp(self):
        name, layer = "cls/seq_relationship/output", "NSP-Proba"
        shape = (self._config.hidden_dim, 2)
        self._add(
            f"{name}_weights",
            "nsp/kernel",
            shape,
            layer,
            "kernel",
            head="nsp",
            transposed=True,
        )
        self._add(f"{name}_bias", "nsp/bias", shape[1:], layer, "bias", head="nsp")

    def add_masked_lm(self):
        config, width = self._config, self._config.input_dim
        shape = (config.hidden_dim, width)
        name = "cls/predictions"
        if not config.tie_word_embeddings:
            path = "mlm_head/output_embedding/embeddings"
            shapes = config.vocabulary_size, width
            self._add(OUTPUT_EMBEDDINGS, path, shapes, "", "", head="mlm")
        if not config.use_bias:
            # RoFormerV2 has this layer only if the widths differ. bert4keras saves it
            # for its users, but reads it from no checkpoint.
            if width != config.hidden_dim:
                mapping = f"{name}/output_mapping", "mlm_head/dense", shape
                self._add_dense(*mapping, "Output-Mapping", head="mlm")
            return
        name = f"{name}/transform"
        self._add_dense(
            f"{name}/dense", "mlm_head/dense", shape, "MLM-Dense", head="mlm"
        )
        self._add_norm(
            f"{name}/LayerNorm", "mlm_head/norm", width, "MLM-Norm", head="mlm"
        )
        shape = (config.vocabulary_size,)
        self._add(OUTPUT_BIAS, "mlm_head/bias", shape, "MLM-Bias", "beta", head="mlm")

    def _add_dense(self, name, path, shape, layer, attribute="", head=None):
        variables = [("kernel", shape), ("bias", shape[1:])]
        for variable, variable_shape in (
            variables if self._config.use_bias else variables[:1]
        ):
            self._add(
                f"{name}/{variable}",
                f"{path}/{variable}",
                variable_shape,
                layer,
                f"{attribute}{variable}",
                head=head,
            )

    def _add_norm(self, name, path, width, layer, head=None):
        config = self._config
        if not config.use_bias:
            return
        for variable in ("beta", "gamma"):
            self._add(
                f"{name}/{variable}",
                f"{path}/{variable}",
                (width,),
                layer,
                variable,
                head,
            )
        if not config.layer_norm_cond_size:
            return
        size, hidden = config.layer_norm_cond_size, config.layer_norm_cond_hidden_size
        variables = [("hidden_dense", (size, hidden))] if hidden else []
        variables += [
            (variable, (hidden or size, width))
            for variable in ("beta_dense", "gamma_dense")
        ]
        for variable, shape in variables:
            names = f"{name}/{variable}/kernel", f"{path}/{variable}/kernel"
            # bert4keras saves these for its users, but reads them from no checkpoint.
            self._add(*names, shape, layer, f"{variable}/kernel", head, optional=True)

    def _add(self, name, path, shape, layer, attribute, head=None, **flags):
        self.rows.append(
            Weight(
                name=name,
                path=path,
                shape=shape,
                dataset=_dataset(path, self._config),
                layer=layer,
                index=self._counts[layer],
                attribute=attribute,
                head=head,
                **flags,
            )
        )
        self._counts[layer] += 1


# Keras names a model's layers by class, and numbers the layers of one class.
_KERAS_LAYERS = {
    "token_embedding": "reversible_embedding",
    "segment_embedding": "embedding",
    "embedding_norm": "layer_norm",
    "embedding_mapping": "dense",
    "pooler": "pooler",
    "mlm_head": "masked_lm_head",
}
_KERAS_INDEX = {"embeddings": 0, "kernel": 0, "bias": 1, "gamma": 0, "beta": 1}


def _dataset(path: str, config: RoFormerConfig) -> str:
    """Path under which Keras stores a variable."""
    layer, *inner, variable = path.split("/")
    if layer.startswith("transformer_layer_"):
        number = layer.removeprefix("transformer_layer_")
        stored = "ro_former_block" + (f"_{number}" if number != "0" else "")
    elif layer == "nsp":
        stored = "dense_1" if config.input_dim != config.hidden_dim else "dense"
    else:
        stored = _KERAS_LAYERS[layer]
    # The MLM head itself holds only the bias.
    index = 0 if path == "mlm_head/bias" else _KERAS_INDEX[variable]
    return "/".join(["layers", stored, *inner, "vars", str(index)])


# === Meanings of names ===

_HEAD_PREFIXES = {
    "bert/pooler/": "pooler",
    "cls/seq_relationship/": "nsp",
    "cls/predictions/": "mlm",
    TASK_PREFIX: "task",
}


def head_of(name: str) -> str | None:
    """The head that a checkpoint name belongs to, or None."""
    for prefix, head in _HEAD_PREFIXES.items():
        if name.startswith(prefix):
            return head
    return None


# Names of the state of optimizers, loss scaling, averaging and dropout. LoRA's kernels
# are among them, because Keras stores them merged into the kernels too.
_TRAINING_STATE = re.compile(
    r"(^|/)\.?(global_step|beta1_power|beta2_power|learning_rate|loss_scale"
    r"|good_steps|current_loss_scale|save_counter|iterations?|training|optimizer"
    r"|Adam\w*|LAMB\w*|lamb\w*|adam_[mv]|vhat|momentum|Momentum|slow"
    r"|Adafactor\w*|ExponentialMovingAverage|OPTIMIZER_SLOT|seed_generator"
    r"|lora_kernel_[ab]|keras_api)(_\d+)?(/|$)",
    re.ASCII,
)


def is_training_state(name: str) -> bool:
    """True if a tensor belongs to an optimizer, counter or metric, not to the model."""
    return _TRAINING_STATE.search(name) is not None
