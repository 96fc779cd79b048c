"""The README.md of a model on the Hugging Face Hub: its description and its use."""

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.task_registry import task_of
from roformer_keras.conversion.checkpoint import Checkpoint

_LIBRARIES = {
    "huggingface": "transformers",
    "sentence-transformers": "sentence-transformers",
}
# The Hub's names of the tasks; `registry` has those of fine-tuned tasks.
_PIPELINES = {
    "RoFormerMaskedLM": "fill-mask",
    "RoFormerCausalLM": "text-generation",
    "RoFormerSim": "sentence-similarity",
}
_PLACEHOLDER = "path/of/this/folder"


def model_card(
    checkpoint: Checkpoint, format: str, repository: str | None = None
) -> str:
    """The card of a model: front matter, sizes and the lines that load it.

    It states only facts of the files. Add the licence, the data and evaluation results,
    such as those of MTEB, which belong to `model-index` in the front matter.
    """
    config, model = checkpoint.config, str(checkpoint.model)
    is_sentences = format == "sentence-transformers"
    task = task_of(model)
    pipeline = task.pipeline_tag if task else _PIPELINES.get(model)
    if is_sentences:
        pipeline = "sentence-similarity"
    tags = ["roformer", "roformer-keras"]
    if is_sentences:
        tags = [
            "sentence-transformers",
            "sentence-similarity",
            "feature-extraction",
            *tags,
        ]
    # The first and last characters of the main block of CJK characters.
    is_chinese = any("一" <= token <= "龥" for token in checkpoint.vocabulary or ())
    front = ["language: zh"] if is_chinese else []
    front += [f"library_name: {_LIBRARIES.get(format, 'keras')}"]
    front += [f"pipeline_tag: {pipeline}"] if pipeline else []
    front += ["tags:", *(f"- {tag}" for tag in tags)]
    rows = {"Class": f"`{model}`", "Layers": config.num_layers}
    rows |= {"Hidden size": config.hidden_dim, "Vocabulary": config.vocabulary_size}
    if isinstance(config, RoFormerConfig):
        rows["Model type"] = config.model_type
    table = [f"| {key} | {value} |" for key, value in rows.items()]
    name = repository or _PLACEHOLDER
    source = f"hf://{repository}" if repository else name
    code = [
        "from roformer_keras import load_model",
        "",
        f'model = load_model("{source}")',
    ]
    encode = 'vectors = model.encode(["今天天气不错", "你好"])'
    if is_sentences:
        code = [
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{name}")',
            encode,
            "",
            "# Or in Keras:",
            *code,
            *([encode] if model in ("RoFormerSim", "RoFormerSentenceEncoder") else ()),
        ]
    title = repository.rpartition("/")[2] if repository else model
    lines = [
        "---",
        *front,
        "---",
        "",
        f"# {title}",
        "",
        "A RoFormer, written by roformer_keras.",
        "",
        "| | |",
        "|---|---|",
        *table,
        "",
        "```python",
        *code,
        "```",
        "",
    ]
    return "\n".join(lines)
