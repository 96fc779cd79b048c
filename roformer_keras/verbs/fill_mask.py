"""The likeliest tokens for masks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.verbs.loading import LoadedSource, Path
from roformer_keras.verbs.options import count
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts, only_texts
from roformer_keras.verbs.surfaces import Inputs, Output, Route, single_samples
from roformer_keras.verbs.vectors import ReadingVerb


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMask(ReadingVerb):
    """Find the likeliest tokens for each [MASK].

    Args:
        engine: as in `embed`; with ray the text is a path, folder or pattern of files.
        top_k: tokens for each [MASK].
    """

    source: Path = "roformer-char"
    top_k: int = count(5)

    name = "fill-mask"
    inputs = Inputs(
        flag="", typed="with [MASK] in it; - is the lines of standard input"
    )
    output = Output(
        {"masks": [[{"token": str, "token_id": int, "probability": float}]]},
        ".jsonl; with --engine ray, the folder of the parts",
        (".jsonl",),
        style="plain",
    )
    route = Route(
        "/fill-mask",
        answers="masks",
        changes={"top_k": {"le": 100}},
        ability="fill_mask",
    )
    examples = (
        "fill-mask 床前明[MASK]光",
        "fill-mask 太祖[MASK]位，大赦天下。 --top-k 3",
    )
    otherwise = "RoFormerMaskedLM"
    cuts_texts = False

    def check(self, loaded: LoadedSource, row: Texts) -> None:
        super().check(loaded, row)
        ids = loaded.tokenizer.encode(row[0], keep_mask=True)[0]
        if loaded.tokenizer.mask_id not in ids:
            raise ConfigurationError(
                f"a text to fill must hold [MASK], got {row[0]!r:.60}"
            )

    def answer(
        self, loaded: LoadedSource, rows: Rows, numbers: Numbers, on_step: OnStep = None
    ) -> Answers:
        from roformer_keras.models.fill_mask import fill_mask

        filled = fill_mask(
            loaded.model,
            loaded.tokenizer,
            only_texts(rows),
            self.top_k,
            **self.computing,
        )
        return {
            "masks": [
                [[vars(candidate) for candidate in mask] for mask in masks]
                for masks in filled
            ]
        }

    def show(self, row: Texts, answers: Mapping[str, Any]) -> list[str]:
        lines = [*map(str, row)]
        for number, candidates in enumerate(answers["masks"], start=1):
            shown = (f"{one['token']} {one['probability']:.4f}" for one in candidates)
            lines.append(f"  {number}  {'  '.join(shown)}")
        return lines

    def count_tokens(self, loaded: LoadedSource, row: Texts) -> list[int]:
        return [len(loaded.tokenizer.encode(row[0], keep_mask=True)[0])]

    def samples(self, loaded: LoadedSource, text: str) -> list[list[Texts]]:
        return [[(f"{row[0]}[MASK]",)] for (row,) in single_samples(text)]
