"""Cosines of pairs of texts."""

import dataclasses

from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts
from roformer_keras.verbs.surfaces import Inputs, Output, Route
from roformer_keras.verbs.vectors import VectorVerb


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity(VectorVerb):
    """Compare pairs of texts."""

    name = "similarity"
    inputs = Inputs(
        ("first", "second"),
        file="pairs, one a line: .txt or .tsv with a tab between, .csv, or .jsonl with "
        "objects; - is standard input, as .txt",
        flag="pair",
        typed="two texts to compare, instead of a file; may be repeated",
        count=2,
        columns="keys or columns of the two texts (default: first,second, or the first "
        "two columns)",
    )
    output = Output(
        {"similarity": float},
        ".jsonl, or .tsv with rows of first text, second text and cosine, in which "
        "tabs and line ends are escaped; - for JSON lines on standard output",
    )
    route = Route("/similarity", "pairs", "similarity", left_out=("max_length",))
    examples = (
        "similarity --pair 学而时习之，不亦说乎？ 学了又时常温习，不是很愉快吗？",
    )
    otherwise = "RoFormerSim"

    def check(self, loaded: LoadedSource, row: Texts) -> None:
        super().check(loaded, row)
        if loaded.name == "RoFormerSim":
            for text in row:
                loaded.model.check_text(text)

    def answer(
        self, loaded: LoadedSource, rows: Rows, numbers: Numbers, on_step: OnStep = None
    ) -> Answers:
        from roformer_keras.search.cosines import pair_cosines
        from roformer_keras.tasks.labels import rounded

        cosines = pair_cosines(self.encoder(loaded), *zip(*rows, strict=True))
        return {"similarity": list(map(rounded, cosines))}
