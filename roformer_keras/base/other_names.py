"""Names of other libraries and of earlier versions, which errors explain."""

import difflib
from collections.abc import Collection

# Names of version 0.1 that 0.2 withdrew -> what to do instead. `argument=` is an
# argument or a field, `--flag` a flag. CHANGELOG.md has a table of them.
WITHDRAWN = {
    "--coordinator": "train in several processes by distributed.train",
    "--num-processes": "train in several processes by distributed.train",
    "--process-id": "train in several processes by distributed.train",
    "--piece-rows": "a worker answers 2048 rows together; of generate 256, of "
    "paraphrase 16",
    "--cpus-per-replica": "start a container for each process, and a proxy before them",
    "--num-replicas": "start a container for each process, and a proxy before them",
    "--data": "docs/fine-tuning/recipes has a file for --config for each task",
    "--recipe": "docs/fine-tuning/recipes has a file for --config for each task",
    "c3": "python -m tools.clue_choices, in a clone, writes JSON lines of CLUE's files",
    "chid": "python -m tools.clue_choices, in a clone, writes JSON lines of CLUE's "
    "files",
    "BatchConcat": "use keras.ops.concatenate along axis 0",
    "BatchSplit": "slice a batch, as in x[: keras.ops.shape(x)[0] // 2]",
    "attention_normalize": "use keras.ops.softmax on the masked scores",
    "Lion": "use keras.optimizers.Lion",
    "LionV2": "use keras.optimizers.Lion",
    "SpTokenizer": "use sentencepiece.SentencePieceProcessor; no model that is covered "
    "has such a vocabulary",
    "MaximumEntropyMarkovModel": "use ConditionalRandomField",
    "--approximate": "search computes all cosines, by FAISS where it is installed; "
    "docs/search.md makes a graph of vectors.npy",
    "--trust": "an index holds nothing that must be trusted any more",
    "backbone_layout": "train data parallel by keras.distribution.DataParallel, or "
    "write a LayoutMap for keras.distribution.ModelParallel",
    "KERAS_BACKEND=openvino": "set KERAS_BACKEND to tensorflow, jax or torch, and use "
    "engine='openvino'",
    "extend_with_lazy_optimization": "subclass the optimizer, and return from "
    "update_step where a gradient is zero",
    "extend_with_lookahead": "use an optimizer of Keras with use_ema=True and "
    "ema_overwrite_frequency=",
    "extend_with_parameter_wise_lr": "subclass the optimizer, and multiply the "
    "learning_rate of update_step by the factor of variable.path",
    "longest_common_subsequence": "use difflib.SequenceMatcher.get_matching_blocks",
    "longest_common_substring": "use difflib.SequenceMatcher.find_longest_match",
    "orthogonally_resize": "repeat rows by np.repeat, and divide by the norm",
    "indexable=": "use linecache.getline, or a list of the lines",
    "RoFormerSeq2Seq": "use RoFormerCausalLM with attention='unilm'; "
    "tools/experiments/translation has the encoder-decoder, and version 0.1 reads its "
    "files",
    "Seq2SeqConfig": "use RoFormerConfig with attention='unilm'",
    "seq2seq": "use unilm, which trains a RoFormerCausalLM to write a second text",
    "evaluate_seq2seq": "write texts by generate, and compare them by sacrebleu",
    "corpus_bleu": "use sacrebleu.corpus_bleu",
    "--tokenize": "write texts by generate, and compare them by sacrebleu",
    "CrossAttention": "use keras.layers.MultiHeadAttention",
    "RoFormerDecoderBlock": "use RoFormerBlock with keras.layers.MultiHeadAttention",
    "InverseSquareRoot": "subclass keras.optimizers.schedules.LearningRateSchedule",
    "warmup=": "use schedule=, points of a PiecewiseLinear",
    "--warmup": "set schedule of the stages in the file of --config",
    "LabelSmoothing": "use keras.losses.CategoricalCrossentropy(label_smoothing=)",
    "smoothed_crossentropy": "use keras.losses.categorical_crossentropy with "
    "label_smoothing=",
    "keras_hub": "use the classes of this package, which have the same methods",
    "quantize": "use engine='openvino-int8', or export with int8=True",
    "quantization=": "load the original model, or convert this one to .safetensors "
    "with version 0.1; engine='openvino-int8' computes in 8 bits",
    "/ready": "ask /health, which is 503 when the queue is full",
}


def explain_withdrawn(name: str) -> str:
    """The sentence about a withdrawn name, or an empty text."""
    if name not in WITHDRAWN:
        return ""
    return f"version 0.2 withdrew {name}: {WITHDRAWN[name]}"


# === Arguments ===

# Library -> its name -> the replacement here.
NAMES = {
    "bert4keras": {
        "application": "the class, such as RoFormerCausalLM",
        "attention_dropout_rate": "attention_dropout=",
        "dropout_rate": "dropout=",
        "end_id": "stop_tokens=",
        "maxlen": "max_new_tokens=, or max_length= of a text",
        "minlen": "min_new_tokens=",
        "segment_vocab_size": "num_segments=",
        "topk": "top_k=",
        "topp": "top_p=",
        "with_mlm": "the class RoFormerMaskedLM",
        "with_pool": "pooler_activation=",
    },
    "Transformers": {
        "add_special_tokens": "not needed: rows have [CLS] and [SEP]",
        "attention_probs_dropout_prob": "attention_dropout=",
        "eos_token_id": "stop_tokens=",
        "hidden_act": "activation=",
        "hidden_dropout_prob": "dropout=",
        "hidden_size": "hidden_dim=",
        "id2label": "classes=, a list of names",
        "intermediate_size": "intermediate_dim=",
        "label2id": "classes=, a list of names",
        "learning_rate": "optimizer=optimizers.make_optimizer(learning_rate)",
        "layer_norm_eps": "layer_norm_epsilon=",
        "max_position_embeddings": "not needed: positions have no table",
        "num_attention_heads": "num_heads=",
        "num_hidden_layers": "num_layers=",
        "num_labels": "num_classes=, or classes= with their names",
        "problem_type": "multi_label=",
        "return_offsets_mapping": "return_offsets=",
        "return_tensors": "not needed: results are NumPy arrays, which models take",
        "skip_special_tokens": "not needed: they are left out",
        "text_pair": "pairs=, or second= of encode",
        "torch_dtype": "dtype=",
        "truncation": "max_length=",
        "vocab_size": "vocabulary_size=",
    },
    "sentence-transformers": {
        "convert_to_numpy": "not needed: vectors are NumPy arrays",
        "convert_to_tensor": "not needed: make a tensor of the array",
        "device": "not needed: the backend chooses it",
        "max_seq_length": "max_length=",
        "normalize_embeddings": "normalize=",
        "show_progress_bar": "verbose=",
        "truncate_dim": "a slice of the vectors",
    },
    "OpenAI": {"max_tokens": "max_new_tokens="},
    "Keras-Hub": {
        "labels": "classes=",
        "load_weights": "the constructor: from_preset always loads them",
        "preprocessor": "tokenizer=, and max_length=",
        "sequence_length": "max_length=",
    },
}

# Flags of other tools, or of another command -> the flag to type, or "".
FLAGS = {
    "lr": ("learning-rate",),
    "model": ("source",),
    "prompt": ("text",),
    "query": ("text",),
    "text": ("query", "pair"),
}

# === Names of the package ===

_HEADS = {
    "MaskedLM": "RoFormerMaskedLM",
    "CausalLM": "RoFormerCausalLM",
    "SequenceClassification": "RoFormerTextClassifier, or RoFormerTextRegressor",
    "TokenClassification": "RoFormerTokenClassifier",
    "QuestionAnswering": "RoFormerQuestionAnswerer",
    "MultipleChoice": "RoFormerMultipleChoice",
}
_TOKENIZER = dict.fromkeys(
    (
        "AutoTokenizer",
        "BertTokenizer",
        "BertTokenizerFast",
        "RoFormerTokenizerFast",
    ),
    "RoFormerTokenizer",
)
# Library -> its name -> the name to import here.
CLASSES = {
    "bert4keras": {
        "AutoRegressiveDecoder": "RoFormerCausalLM and its generate",
        "Tokenizer": "RoFormerTokenizer",
        "build_transformer_model": "RoFormerBackbone.from_preset, or that of "
        "roformer_keras.bert4keras.models",
    },
    "Transformers": {
        "RoFormerModel": "RoFormerBackbone",
        "TFRoFormerModel": "RoFormerBackbone",
        "AutoConfig": "RoFormerConfig",
        "AutoModel": "load_model, or RoFormerBackbone",
        **_TOKENIZER,
        **{
            f"{prefix}For{head}": class_here
            for prefix in ("RoFormer", "TFRoFormer", "AutoModel")
            for head, class_here in _HEADS.items()
        },
        "AutoModelForSeq2SeqLM": "RoFormerCausalLM with attention='unilm'",
        "Trainer": "finetune, or fit of a model",
        "TrainingArguments": "FinetuningSettings",
        "from_pretrained": "load_model, or from_preset of a class",
        "pipeline": "load_model, and the methods of the model",
    },
    "sentence-transformers": {
        "CrossEncoder": "RoFormerTextClassifier, or RoFormerTextRegressor",
        "SentenceTransformer": "RoFormerSim, or RoFormerSentenceEncoder",
    },
    "Keras-Hub": {
        "RoformerV2Backbone": "RoFormerBackbone",
        "RoformerV2MaskedLM": "RoFormerMaskedLM",
        "RoformerV2TextClassifier": "RoFormerTextClassifier",
        "RoformerV2Tokenizer": "RoFormerTokenizer",
        "from_preset": "load_model, or from_preset of a class",
    },
}


def explain_name(owner: str, name: str, known: Collection[str]) -> str:
    """The message for a name that a module lacks, with its name here."""
    if message := explain_withdrawn(name):
        return message
    for library, names in CLASSES.items():
        if name in names:
            return f"{owner} has no {name}: that of {library} is {names[name]} here"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f": did you mean {near[0]}?" if near else ""
    return f"{owner} has no attribute {name!r}{hint}"
