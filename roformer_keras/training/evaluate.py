"""BLEU and loss of an encoder-decoder on a table of pairs."""

import dataclasses
from collections.abc import Sequence

import keras
from keras import ops

from roformer_keras.compiled import Compiled
from roformer_keras.data.batches import TextBatches
from roformer_keras.data.files import read_table
from roformer_keras.data.rows import PairRows
from roformer_keras.data.texts import as_pairs
from roformer_keras.errors import ConfigurationError
from roformer_keras.generation.prompts import as_ids
from roformer_keras.losses import smoothed_crossentropy
from roformer_keras.models import RoFormerSeq2Seq
from roformer_keras.training.bleu import Bleu, corpus_bleu, make_metric, tokenize_of

# So that no pair is too long to have a loss.
_ANY_LENGTH = 2**31


@dataclasses.dataclass(frozen=True)
class Seq2SeqEvaluation:
    """Result of `evaluate_seq2seq`.

    Attributes:
        bleu: `Bleu` of the hypotheses.
        loss: float. Cross-entropy of the references in nats a token, `[SEP]` included.
        pairs: list of (source, reference), of those that were evaluated.
        hypotheses: list of str, written from their sources.
        left_out: int. Pairs whose source has no token of the vocabulary.
    """

    bleu: Bleu
    loss: float
    pairs: list[tuple[str, str]]
    hypotheses: list[str]
    left_out: int

    def metrics(self) -> dict:
        """All but the texts, as plain JSON types."""
        return {
            "pairs": len(self.pairs),
            "left_out": self.left_out,
            "bleu": self.bleu.score,
            "tokenize": self.bleu.tokenize,
            "signature": self.bleu.signature,
            "loss": self.loss,
        }


def evaluate_seq2seq(
    model: RoFormerSeq2Seq,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    num_beams: int = 4,
    length_penalty: float = 0.0,
    max_new_tokens: int | None = None,
    batch_size: int = 64,
    tokenize: str | None = None,
    verbose: int | str = "auto",
) -> Seq2SeqEvaluation:
    """Writes a text from every source by beam search, and compares it with another.

    Args:
        model: `RoFormerSeq2Seq` with its tokenizer.
        sources: what is written from.
        references: as many texts, which are right.
        num_beams, length_penalty, max_new_tokens: as in `RoFormerSeq2Seq.generate`; the
            loss depends on none of them.
        batch_size: int. Most beams that are computed together; and pairs, of the loss.
        tokenize: as in `corpus_bleu`.
        verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.

    Returns:
        `Seq2SeqEvaluation`.

    Raises:
        ConfigurationError: an argument breaks its rule, texts are not as many as the
            others or empty, all pairs are left out, or sacrebleu is not installed.
        VocabularyError: the model has no tokenizer.

    Example:
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset("roformer-char")
        >>> model = roformer_keras.RoFormerSeq2Seq(
        ...     vocabulary_size=tokenizer.vocabulary_size,
        ...     num_layers=1,
        ...     num_heads=2,
        ...     hidden_dim=32,
        ...     intermediate_dim=64,
        ... )
        >>> model.tokenizer = tokenizer
        >>> found = roformer_keras.evaluate_seq2seq(
        ...     model, ["你好"], ["您好"], num_beams=2, max_new_tokens=4, verbose=0
        ... )
        >>> found.pairs
        [('你好', '您好')]
    """
    pairs = as_pairs(sources, references)
    tokenize = (
        tokenize_of([text for _, text in pairs]) if tokenize is None else tokenize
    )
    # Known before the work.
    make_metric(tokenize)
    known = [pair for pair in pairs if _is_known(model, pair[0])]
    if not known:
        raise ConfigurationError(
            f"a source must have tokens of the vocabulary, and none of {len(pairs)} "
            "has: the model is one of other texts"
        )
    sources, references = (list(texts) for texts in zip(*known, strict=True))
    hypotheses = model.generate(
        sources,
        method="beam",
        num_beams=num_beams,
        length_penalty=length_penalty,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        verbose=verbose,
    )
    return Seq2SeqEvaluation(
        bleu=corpus_bleu(hypotheses, references, tokenize),
        loss=cross_entropy(model, sources, references, batch_size),
        pairs=known,
        hypotheses=hypotheses,
        left_out=len(pairs) - len(known),
    )


def _is_known(model, text):
    """True if something can be written from a text."""
    try:
        as_ids(model, text)
    except ConfigurationError:
        return False
    return True


def cross_entropy(
    model: RoFormerSeq2Seq,
    sources: Sequence[str],
    targets: Sequence[str],
    batch_size: int = 64,
) -> float:
    """The loss of all tokens of the targets, each alike, without label smoothing.

    Other than what `evaluate` of the model gives, it depends neither on the batches nor
    on the loss that the model is compiled with.

    Returns:
        Nats a token; `[SEP]` after each text counts as one.
    """
    rows = PairRows(model.text_tokenizer(), as_pairs(sources, targets), _ANY_LENGTH)
    batches = TextBatches(rows.lengths, rows.batch, batch_size)

    def loss_of(inputs, expected, weights):
        logits = model(inputs, training=False)
        return ops.sum(weights * smoothed_crossentropy(expected, logits, 0.0))

    compiled = Compiled(loss_of, model.weights, any_shape=True)
    total = tokens = 0.0
    for number in range(len(batches)):
        batch = keras.tree.map_structure(ops.convert_to_tensor, batches[number])
        total += float(ops.convert_to_numpy(compiled(*batch)))
        tokens += float(ops.sum(batch[-1]))
    return total / tokens


def read_pairs(
    path: str,
    fields: Sequence[str] = (),
    format: str | None = None,
    skipped: list[tuple[int, str]] | None = None,
    header: str | None = None,
    encoding: str = "utf-8",
) -> list[tuple[str, str]]:
    """Sources and references of a file as `read_table` takes it.

    Args:
        path: of the file; "-" is standard input, with tabs.
        fields: two columns or keys; the first two columns, or `first` and `second` of
            JSON, if none are given.
        format, skipped, header, encoding: as in `read_table`.

    Raises:
        ConfigurationError: there are not two fields.
        SourceError: as in `read_table`.
    """
    if fields and len(fields) != 2:
        raise ConfigurationError(
            f"fields must name a source and a reference, got {', '.join(fields)}"
        )
    return read_table(
        path,
        2,
        fields,
        labelled=False,
        format=format,
        skipped=skipped,
        header=header,
        encoding=encoding,
    ).texts
