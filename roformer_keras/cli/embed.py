"""`roformer-keras embed`."""

from pathlib import Path
from typing import Literal

from roformer_keras.cli import interrupts
from roformer_keras.cli.flags import Count
from roformer_keras.cli.models import (
    load_encoder,
    load_sentence_encoder,
    load_tokenizer,
)
from roformer_keras.cli.terminal import shows_progress, start_backend
from roformer_keras.cli.texts import check_ending, json_line, read_lines
from roformer_keras.io.atomic import check_target, replacing

EXAMPLES = ("embed sentences.txt -o vectors.npy",)


def run(
    file: str,
    *,
    source: str = "roformer-sim-char",
    config: str | None = None,
    vocabulary: str | None = None,
    output: str = "-",
    max_length: Count | None = None,
    normalize: bool = True,
    dtype: Literal["float32", "bfloat16"] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Turn lines of text into vectors.

    Args:
        file: texts, one a line; - is standard input.
        output: .npy or .jsonl, or - for JSON lines on standard output.
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned
            encoder, as in its training).
        normalize: keep the length of the vectors, instead of 1.
        dtype: bfloat16 is faster for many texts where the processor has it, and less
            exact (default: float32).
    """
    check_ending(output, ".npy", ".jsonl")
    if output != "-":
        check_target(Path(output), overwrite, folder=False)
    texts = read_lines(file)
    start_backend()
    import numpy as np

    from roformer_keras.models.embedding import embed

    def vectors():
        progress = shows_progress(quiet)
        encoder = load_sentence_encoder(source, max_length, config, vocabulary, dtype)
        if encoder is not None:
            found = encoder.encode(texts, normalize=normalize, verbose=int(progress))
        else:
            tokenizer = load_tokenizer(source, vocabulary)
            model = load_encoder(source, config, dtype)
            length = 512 if max_length is None else max_length
            found = embed(
                *(model, tokenizer, texts, length, normalize), verbose=int(progress)
            )
        interrupts.check()
        return found

    def lines():
        for text, vector in zip(texts, vectors(), strict=True):
            yield json_line({"text": text, "vector": vector.tolist()})

    if output == "-":
        for line in lines():
            print(line)
        return
    with replacing(output, overwrite) as partial:
        if output.endswith(".npy"):
            with open(partial, "wb") as stream:
                np.save(stream, vectors())
        else:
            with open(partial, "w", encoding="utf-8") as out:
                out.writelines(f"{line}\n" for line in lines())
    print(output)
