"""The likeliest tokens for masks."""

import dataclasses

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.verbs import loading as sources
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.verb import LoadedVerb, ReadingVerb, count


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMask(ReadingVerb):
    """The likeliest tokens for each `[MASK]` of a text.

    Args:
        top_k: tokens for each [MASK].
    """

    source: sources.Path = "roformer-char"
    top_k: int = count(5)

    name = "fill-mask"
    column = "masks"
    otherwise = "RoFormerMaskedLM"

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        return loaded.name == cls.otherwise

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        from roformer_keras.models.fill_mask import fill_mask

        tokenizer = loaded.tokenizer

        def check(row):
            if tokenizer.mask_id not in tokenizer.encode(row[0], keep_mask=True)[0]:
                raise ConfigurationError(
                    f"a text to fill must hold [MASK], got {row[0]!r:.60}"
                )

        def answer(rows, numbers):
            texts = [text for (text,) in rows]
            filled = fill_mask(
                loaded.model, tokenizer, texts, self.top_k, **self.computing
            )
            return {
                "masks": [
                    [[vars(candidate) for candidate in mask] for mask in masks]
                    for masks in filled
                ]
            }

        return LoadedVerb(check, answer, self.fields)
