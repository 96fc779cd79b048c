"""`roformer-keras fill-mask`."""

from roformer_keras.cli.flags import Count
from roformer_keras.cli.terminal import start_backend
from roformer_keras.cli.texts import json_line, read_texts
from roformer_keras.tasks.sources import load_tokenizer

EXAMPLES = ("fill-mask 床前明[MASK]光", "fill-mask 太祖[MASK]位，大赦天下。 --top-k 3")


def run(
    texts: list[str],
    *,
    source: str = "roformer-char",
    config: str | None = None,
    vocabulary: str | None = None,
    top_k: Count = 5,
    as_json: bool = False,
) -> None:
    """Find the likeliest tokens for each [MASK].

    Args:
        texts: with [MASK] in it; - is the lines of standard input.
        top_k: tokens for each [MASK].
    """
    texts = read_texts(texts)
    start_backend()
    from roformer_keras.models import RoFormerMaskedLM
    from roformer_keras.models.fill_mask import fill_mask

    tokenizer = load_tokenizer(source, vocabulary)
    model = RoFormerMaskedLM.from_preset(source, config=config, output_activation=None)
    found = fill_mask(model, tokenizer, texts, top_k)
    for text, masks in zip(texts, found, strict=True):
        if as_json:
            rows = [[vars(candidate) for candidate in mask] for mask in masks]
            print(json_line({"text": text, "masks": rows}))
            continue
        print(text)
        for number, candidates in enumerate(masks, start=1):
            shown = "  ".join(f"{c.token} {c.probability:.4f}" for c in candidates)
            print(f"  {number}  {shown}")
