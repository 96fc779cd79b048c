"""`roformer-keras paraphrase`."""

from roformer_keras.cli import ray_jobs
from roformer_keras.cli.flags import Count
from roformer_keras.cli.jobs import run_job
from roformer_keras.cli.texts import (
    check_inputs,
    output_lines,
    output_style,
    read_inputs,
)
from roformer_keras.tasks.sources import load_paraphraser
from roformer_keras.types import Engine, EngineOrRay, FileEncoding

EXAMPLES = ("paraphrase --text 学习了又时常温习，不是很愉快吗？ --n 20 --k 5",)
SETTINGS = "roformer_keras.generation.options.GenerationConfig"
TABLES = ray_jobs.TABLES
FLAGS = ("temperature", "top_k", "top_p")


def run(
    file: str | None = None,
    *,
    text: list[str] | None = None,
    source: str = "roformer-sim-char",
    config: str | None = None,
    vocabulary: str | None = None,
    encoding: FileEncoding = "utf-8",
    output: str = "-",
    n: Count = 100,
    k: Count = 20,
    masked_positions: tuple[int, ...] = (),
    max_length: Count | None = None,
    max_new_tokens: Count | None = None,
    seed: int | None = None,
    batch_size: Count = 128,
    engine: EngineOrRay = "keras",
    worker_engine: Engine = "keras",
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> None:
    """Find similar sentences.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        file: sentences, one a line; - is standard input.
        text: sentence to take instead of a file; may be repeated.
        encoding: of the file, as in `embed`.
        output: .jsonl, or .tsv with rows of sentence, similar sentence and cosine, in
            which tabs and line ends are escaped; - for JSON lines on standard
            output.
        n: sentences that are written for each.
        k: maximum of sentences that are kept, the nearest.
        masked_positions: tokens to replace; 1 is the first.
        max_length: maximum of tokens of a sentence and a similar one together.
        max_new_tokens: maximum of tokens of a similar sentence (default: 64).
        seed: the same seed gives the same sentences.
        batch_size: sentences that are computed, and written, together.
        engine: what computes the steps; all but keras need roformer-keras[export]; int8
            has weights in 8 bits; ray computes in many processes, see `embed`.
        worker_engine: the engine of each process of a Ray.
    """
    on_ray = ray_jobs.take_options(flags)
    lengths = {"max_length": max_length, "max_new_tokens": max_new_tokens}
    options = {
        "n": n,
        "k": k,
        "masked_positions": masked_positions,
        **lengths,
        **flags,
    }
    if engine == "ray":
        from roformer_keras.distributed.verbs import Paraphrase

        more = {"batch_size": batch_size, "engine": worker_engine}
        verb = Paraphrase(
            source=source,
            config=config,
            vocabulary=vocabulary,
            options=options | more,
            seed=seed,
        )
        ray_jobs.run_on_ray(
            verb,
            file,
            output,
            on_ray,
            texts=text,
            encoding=encoding,
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    ray_jobs.check_no_options(on_ray, worker_engine)
    sentences = read_inputs(file, text, encoding)
    style = output_style(output, text)

    def load():
        model = load_paraphraser(source, config, vocabulary)
        check_inputs(
            sentences,
            lambda sentence: model.as_prompt(
                model.masked(sentence, masked_positions), **lengths
            ),
        )
        return model

    def write(model, batch, job):
        written = model.paraphrase(
            batch,
            **options,
            seed=job.seed,
            batch_size=batch_size,
            first_number=job.done,
            engine=engine,
            verbose=0,
        )
        return output_lines(batch, written, style)

    run_job(
        *(load, write, sentences, max(1, batch_size // n), output),
        {"command": "paraphrase", **options, "engine": engine},
        source,
        config=config,
        vocabulary=vocabulary,
        seed=seed,
        overwrite=overwrite,
        quiet=quiet,
    )
