"""`roformer-keras generate`."""

import itertools
from typing import Literal

from roformer_keras.cli import interrupts, ray_jobs
from roformer_keras.cli.flags import Count
from roformer_keras.cli.jobs import run_job
from roformer_keras.cli.terminal import (
    log_to_stderr,
    remark,
    remark_source,
    start_backend,
)
from roformer_keras.cli.texts import (
    check_inputs,
    output_lines,
    output_style,
    read_inputs,
)
from roformer_keras.tasks.sources import load_writer
from roformer_keras.types import Engine, EngineOrRay, FileEncoding

EXAMPLES = (
    "generate --text 床前明月光，",
    "generate --text 春风 --num-return-sequences 3 --top-p 0.8 --seed 1",
    "generate --source roformer-sim-char --text 他的军队被打败，逃回了京城。 "
    "--method beam",
)
SETTINGS = "roformer_keras.generation.options.GenerationConfig"
_SAMPLING = ("method", "temperature", "top_k", "top_p")
TABLES = ray_jobs.TABLES
FLAGS = (*_SAMPLING, "num_return_sequences", "num_beams", "length_penalty")


def run(
    file: str | None = None,
    *,
    text: list[str] | None = None,
    source: str | None = None,
    config: str | None = None,
    vocabulary: str | None = None,
    encoding: FileEncoding = "utf-8",
    output: str = "-",
    model: Literal["RoFormerCausalLM", "RoFormerSim"] | None = None,
    unilm: bool = False,
    max_length: Count | None = None,
    max_new_tokens: Count | None = None,
    min_length: int = 0,
    min_new_tokens: int = 0,
    stop: list[str] | None = None,
    seed: int | None = None,
    batch_size: Count = 64,
    engine: EngineOrRay = "keras",
    worker_engine: Engine = "keras",
    overwrite: bool = False,
    quiet: bool = False,
    **search,
) -> None:
    """Write continuations of prompts.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        file: prompts, one a line; - is standard input.
        text: prompt to take instead of a file; may be repeated.
        source: checkpoint (default: roformer-gpt-char; with --unilm or --model
            RoFormerSim roformer-sim-char).
        encoding: of the file, as in `embed`.
        output: .jsonl, or .tsv with rows of prompt, text and score, in which tabs and
            line ends are escaped; - for JSON lines on standard output.
        model: class to load, if the source does not say it.
        unilm: the model sees the prompt in both directions, and writes a second text.
        max_length: maximum of tokens of prompt and text together (default: 256); of an
            encoder-decoder of the text alone.
        max_new_tokens: maximum of tokens of the text (default of RoFormerSim: 64, of an
            encoder-decoder: 50 more than the prompt has).
        min_length: tokens, counted as those of --max-length, before which a text does
            not end.
        min_new_tokens: tokens of the text, likewise.
        stop: token that ends a text, such as 。 (default: [SEP]); may be repeated.
        seed: the same seed gives the same texts.
        batch_size: texts that are computed, and written, together.
        engine: what computes the steps; all but keras need roformer-keras[export]; int8
            has weights in 8 bits; ray computes in many processes, see `embed`.
        worker_engine: the engine of each process of a Ray.
    """
    on_ray = ray_jobs.take_options(search)
    is_sim = unilm or model == "RoFormerSim"
    if source is None:
        source = "roformer-sim-char" if is_sim else "roformer-gpt-char"
        if not quiet:
            remark_source(source)
    from roformer_keras.generation.options import GenerationConfig

    # Checked before a model is loaded.
    checked = vars(GenerationConfig(**search))
    search = {name: checked[name] for name in FLAGS}
    lengths = {
        "max_length": max_length,
        "max_new_tokens": max_new_tokens,
        "min_length": min_length,
        "min_new_tokens": min_new_tokens,
    }
    if engine == "ray":
        from roformer_keras.distributed.verbs import Generate

        more = {"batch_size": batch_size, "engine": worker_engine, "stop_tokens": stop}
        verb = Generate(
            source=source,
            config=config,
            vocabulary=vocabulary,
            model=model,
            unilm=unilm,
            options=search | lengths | more,
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
    prompts = read_inputs(file, text, encoding)
    style = output_style(output, text)

    def load():
        found = load_model(source, model, unilm, config, vocabulary, quiet)
        # These are not the error of a line.
        found.check_lengths(**lengths)
        check_inputs(prompts, lambda prompt: found.as_prompt(prompt, **lengths))
        return found

    def write(found, batch, job):
        written = found.generate(
            batch,
            **search,
            **lengths,
            stop_tokens=stop,
            seed=job.seed,
            batch_size=batch_size,
            first_number=job.done,
            engine=engine,
            return_scores=True,
            verbose=0,
        )
        return output_lines(batch, written, style)

    is_one = len(prompts) == search["num_return_sequences"] == 1
    if style == "plain" and is_one and search["method"] != "beam":
        start_backend()
        options = {name: search[name] for name in _SAMPLING}
        _print_stream(
            load().stream(
                prompts[0][1],
                seed=seed,
                **options,
                **lengths,
                stop_tokens=stop,
                engine=engine,
            ),
            quiet,
        )
        return
    is_beam = search["method"] == "beam"
    rows = search["num_beams" if is_beam else "num_return_sequences"]
    run_job(
        *(load, write, prompts, max(1, batch_size // rows), output),
        {
            "command": "generate",
            "model": model,
            "unilm": unilm,
            **lengths,
            **search,
            "stop_tokens": stop,
            "engine": engine,
        },
        source,
        config=config,
        vocabulary=vocabulary,
        seed=seed,
        overwrite=overwrite,
        quiet=quiet,
    )


def _print_stream(pieces, quiet):
    """Prints a text as it is written."""
    # The second piece compiles a program that the first does not need. A remark of it
    # would break the line of the text.
    with log_to_stderr(quiet):
        first = list(itertools.islice(pieces, 2))
    for piece in itertools.chain(first, pieces):
        interrupts.check()
        print(piece, end="", flush=True)
    print()


def load_model(
    source, name=None, unilm=False, config=None, vocabulary=None, quiet=False
):
    """A model that writes, as in `load_writer`; `quiet` shows no remark of a guess."""
    show = None if quiet else remark
    return load_writer(source, name, unilm, config, vocabulary, show)
