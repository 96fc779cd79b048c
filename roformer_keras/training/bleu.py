"""BLEU of a corpus, as sacrebleu counts it."""

import dataclasses
from collections.abc import Sequence

from roformer_keras.checks import check_instance, check_iterable
from roformer_keras.errors import ConfigurationError
from roformer_keras.extras import import_extra


@dataclasses.dataclass(frozen=True)
class Bleu:
    """The result of sacrebleu.

    Attributes:
        score: float from 0 to 100.
        tokenize: str. How texts were cut.
        signature: str. What the score depends on, sacrebleu's version included; cite
            it with the score.
    """

    score: float
    tokenize: str
    signature: str


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str | None = None
) -> Bleu:
    """BLEU of texts that were written, each against one that is right.

    Args:
        hypotheses: texts that were written.
        references: as many texts.
        tokenize: how sacrebleu cuts texts: `"13a"` at spaces and marks, `"zh"` besides
            around each Chinese character, `"char"` everywhere, or another name of its.
            None for what `tokenize_of` finds.

    Returns:
        `Bleu`.

    Raises:
        ConfigurationError: texts are not as many as the others, sacrebleu is not
            installed, or it has no such way to cut.

    Example:
        >>> found = roformer_keras.corpus_bleu(["学而时习之"], ["学而时习之"])
        >>> round(found.score, 2), found.tokenize
        (100.0, 'zh')

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771.
    """
    hypotheses = _texts("hypotheses", hypotheses)
    references = _texts("references", references)
    if len(hypotheses) != len(references) or not references:
        raise ConfigurationError(
            "there must be a reference for each hypothesis, and at least one, got "
            f"{len(hypotheses)} hypotheses and {len(references)} references"
        )
    if tokenize is not None:
        check_instance("tokenize", tokenize, str)
    else:
        tokenize = tokenize_of(references)
    metric = make_metric(tokenize)
    score = metric.corpus_score(hypotheses, [references]).score
    return Bleu(score, tokenize, str(metric.get_signature()))


def _texts(name, texts):
    check_iterable(name, texts, "a list of texts")
    texts = list(texts)
    for text in texts:
        check_instance(f"each of {name}", text, str)
    return texts


def tokenize_of(references: Sequence[str]) -> str:
    """`"zh"` if most letters of texts are Chinese characters, else `"13a"`."""
    letters = [letter for text in references for letter in text if letter.isalpha()]
    chinese = sum(map(_is_chinese, letters))
    return "zh" if 2 * chinese > len(letters) else "13a"


def _is_chinese(letter):
    # The blocks of ideographs, and those of the higher planes.
    return (
        "\u3400" <= letter <= "\u9fff"
        or "\uf900" <= letter <= "\ufaff"
        or (letter >= "\U00020000")
    )


def make_metric(tokenize: str):
    """`sacrebleu.metrics.BLEU` with a way to cut texts, checked.

    Raises:
        ConfigurationError: sacrebleu is not installed, has no such way to cut, or needs
            something else for it.
    """
    kind = load_sacrebleu().metrics.BLEU
    if tokenize not in kind.TOKENIZERS:
        raise ConfigurationError(
            f"tokenize must be one of {', '.join(kind.TOKENIZERS)}, got {tokenize!r}"
        )
    try:
        return kind(tokenize=tokenize)
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"sacrebleu cannot cut texts by tokenize={tokenize!r} here: {error}"
        ) from error


def load_sacrebleu():
    """The library, which nothing else needs, or the command that installs it.

    Raises:
        ConfigurationError: it is not installed.
    """
    return import_extra("sacrebleu", "BLEU")
