"""Compares a model of this package with the same one in bert4keras or Transformers."""

import dataclasses
import gc
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras.base.checks import check_choice
from roformer_keras.base.config import ConfigSource
from roformer_keras.base.errors import (
    ConfigurationError,
    OutputError,
    RoFormerError,
    refuse,
)
from roformer_keras.base.progress import progress_bar
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.archive import scratch_folder
from roformer_keras.io.atomic import replacing
from roformer_keras.verification.answers import (
    LiveAnswers,
    Output,
    SavedAnswers,
    batch_size,
)
from roformer_keras.verification.counterpart import counterpart, outputs_by_role
from roformer_keras.verification.reference import Reference, TransformersReference
from roformer_keras.verification.report import Comparison, Report
from roformer_keras.verification.transformers_answers import TransformersAnswers

# Two models of so many parameters should not be in memory together.
_LARGE_MODEL = 10_000_000

# Attention of so many tokens takes gigabytes a head.
_MAX_LENGTH = 2**14

DEFAULT_LENGTHS = (1, 2, 512, 1536)

# Published values of released weights.
PUBLISHED: dict[str, dict[str, Any]] = {
    "chinese_roformer_L-12_H-768_A-12": {
        "token_ids": [[0, 1, 2, 3, 4, 5]],
        "mlm": [
            [-0.1205, -1.0265, 0.2922],
            [-1.5134, 0.1974, 0.1519],
            [-5.0135, -3.9003, -0.8404],
        ],
        "tolerance": 1e-4,
        "source": "integration test of RoFormer in Hugging Face transformers",
    }
}


def verify(
    source: str | os.PathLike,
    *,
    against: str | TransformersReference = "bert4keras",
    bert4keras: str | os.PathLike | Reference | None = None,
    python: str | None = None,
    reference: str | os.PathLike | None = None,
    save_reference: str | os.PathLike | None = None,
    published: bool = False,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    cases: Collection[str] | None = None,
    config: ConfigSource | None = None,
    verbose: int | str = "auto",
) -> Report:
    """Compares a source in this package with the same source in another one.

    It compares everything that the source has weights for: encoder, masked, causal and
    UniLM language model, pooler (linear and tanh), next-sentence prediction, kept
    tokens; on padded batches of rows of unequal lengths, with UniLM segments and zeros
    in mid-sequence. bert4keras loads the files unchanged; weights that it cannot load
    (a preset, safetensors, `.keras`) are exported to its own format. Transformers loads
    the folder of Hugging Face, or an exported one; it has the encoder, the masked and
    causal language models, and the heads of a `RoFormerTokenClassifier` without a
    field, of a `RoFormerQuestionAnswerer`, and of a `RoFormerTextClassifier` or
    `RoFormerTextRegressor` with `head_activation`. For other tasks, only the encoder is
    compared.

    Args:
        source: as in `from_preset`.
        against: `"bert4keras"`, `"transformers"`, or a running `TransformersReference`,
            which stays running.
        bert4keras: folder that holds bert4keras, or a running `Reference`, which stays
            running. By default as in `Reference`.
        python: interpreter to run it with; by default this one. To run Transformers, it
            must be able to import transformers and torch.
        reference: file that `save_reference` wrote, instead of a running bert4keras.
        save_reference: path to save bert4keras's outputs to, with samples of large
            ones; overwritten.
        published: bool. Whether to compare with published values of these weights,
            instead of with bert4keras.
        lengths: lengths of the batches; a saved reference has its own.
        cases: names of the cases, such as `"mlm"`; by default all.
        config: for sources without a configuration, see `open_checkpoint`.
        verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.

    Returns:
        `Report`. A difference from bert4keras may be 1e-4 up to length 512 and 5e-4
        beyond; from Transformers 1e-5 up to length 512, or 1e-4 from a hidden size of
        768 on, times the largest output if that is above 1.

    Raises:
        ReferenceUnavailable: the other package cannot be run (the message tells how to
            install it), or its causal model sees future tokens, as in some versions of
            Transformers.
        CheckpointError: the source cannot be loaded on one of the sides.
        ConfigurationError: the source needs other inputs than ids, or has attention
            that the other package cannot compute.
        OutputError: `save_reference` or the temporary folder cannot be written.

    Example:
        >>> report = roformer_keras.verify(
        ...     "roformer-char",
        ...     bert4keras="bert4keras-0.11.5",
        ...     lengths=(1, 16),
        ...     cases=["encoder"],
        ...     verbose=0,
        ... )
        >>> report.passed
        True
    """
    if not isinstance(against, TransformersReference):
        check_choice("against", against, ("bert4keras", "transformers"))
    path = resolve(source)
    if published:
        return _verify_published(path, config)
    refuse(
        any(not 0 < length <= _MAX_LENGTH for length in lengths) or not lengths,
        f"lengths must be 1 or more, to {_MAX_LENGTH:,}, got {list(lengths)}",
    )
    refuse(
        reference is not None and save_reference is not None,
        "a saved reference cannot be saved again: copy it",
    )
    with ExitStack() as stack:
        if save_reference is not None:
            # A wrong path fails before the work, not after it.
            target = stack.enter_context(replacing(save_reference, overwrite=True))
        answers: Any
        if reference is not None:
            answers = SavedAnswers(path, reference, config, cases)
        else:
            scratch = stack.enter_context(_temporary_folder())
            if against != "bert4keras":
                answers = TransformersAnswers(path, config, lengths, cases, scratch)
                running: Any = against
                if isinstance(against, str):
                    running = stack.enter_context(TransformersReference(python))
            else:
                answers = LiveAnswers(path, config, lengths, cases, scratch)
                if bert4keras is None or isinstance(bert4keras, str | os.PathLike):
                    bert4keras = stack.enter_context(Reference(bert4keras, python))
                running = bert4keras
            answers.ask(running)
        comparisons = tuple(_compare(path, config, answers, verbose))
        if save_reference is not None:
            answers.save(target)
    epsilon = answers.metadata["layer_norm_epsilon"]
    return Report(str(source), answers.name, epsilon, comparisons)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        with scratch_folder() as folder:
            yield folder
    except RoFormerError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to the temporary folder {tempfile.gettempdir()} ({error}): "
            "free some space there, or name another in TMPDIR"
        ) from error


def _compare(path, config, answers, verbose) -> Iterator[Comparison]:
    cases = answers.metadata["cases"]
    epsilon = answers.metadata["layer_norm_epsilon"]
    limit = answers.metadata.get("bar")
    with progress_bar(verbose, total=len(cases), desc="cases") as bar:
        for (case, kwargs), batches in zip(cases.items(), answers.cases(), strict=True):
            bar.set_postfix_str(case)
            model = counterpart(path, kwargs, config=config, layer_norm_epsilon=epsilon)
            for length, inputs, expected in batches:
                outputs = outputs_by_role(model, inputs, batch_size(length))
                for role, expected_output in expected.items():
                    yield expected_output.compare(
                        case, role, length, outputs[role], limit
                    )
            is_large = model.count_params() > _LARGE_MODEL
            del model
            if is_large:
                # In a program with many objects this takes seconds.
                gc.collect()
            bar.update()


def _verify_published(path, config) -> Report:
    published = PUBLISHED.get(Path(path).stem)
    if published is None:
        raise ConfigurationError(
            f"there are no published values for {Path(path).stem!r}, only for "
            f"{', '.join(PUBLISHED)}"
        )
    model = counterpart(path, {"with_mlm": "linear"}, config=config)
    token_ids = np.array(published["token_ids"], "int32")
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    expected = np.array(published["mlm"], "float32")
    indices = tuple(map(np.arange, expected.shape))
    logits = outputs_by_role(model, inputs)["mlm"][:1]
    length = token_ids.shape[1]
    comparison = dataclasses.replace(
        Output(expected[None], None, indices).compare(
            "published", "mlm", length, logits
        ),
        bar=published["tolerance"],
    )
    epsilon = model.config.layer_norm_epsilon
    return Report(str(path), published["source"], epsilon, (comparison,))
