"""`roformer-keras fill-mask`."""

from roformer_keras.cli import ray_jobs
from roformer_keras.cli.flags import Count
from roformer_keras.cli.terminal import start_backend
from roformer_keras.cli.texts import json_line, read_texts
from roformer_keras.errors import ConfigurationError
from roformer_keras.tasks.sources import load_tokenizer
from roformer_keras.types import FileEncoding, RunsOn

EXAMPLES = ("fill-mask 床前明[MASK]光", "fill-mask 太祖[MASK]位，大赦天下。 --top-k 3")

TABLES = ray_jobs.TABLES


def run(
    texts: list[str],
    *,
    source: str = "roformer-char",
    config: str | None = None,
    vocabulary: str | None = None,
    top_k: Count = 5,
    encoding: FileEncoding = "utf-8",
    as_json: bool = False,
    output: str = "-",
    engine: RunsOn = "keras",
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> None:
    """Find the likeliest tokens for each [MASK].

    Args:
        texts: with [MASK] in it; - is the lines of standard input.
        top_k: tokens for each [MASK].
        encoding: of standard input or files, as in `embed`.
        output: with --engine ray, the folder of the parts.
        engine: ray computes in many processes, see `embed`: the text is then that of
            a path, folder or pattern of files.
    """
    options = ray_jobs.take_options(flags)
    if engine == "ray":
        from roformer_keras.distributed.verbs import FillMask

        ray_jobs.run_on_ray(
            FillMask(source=source, config=config, vocabulary=vocabulary, top_k=top_k),
            *(texts[0] if len(texts) == 1 else None, output, options),
            encoding=encoding,
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    ray_jobs.check_no_options(options)
    if output != "-":
        raise ConfigurationError("--output is for files of texts: add --engine ray")
    texts = read_texts(texts, encoding)
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
