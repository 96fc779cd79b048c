"""Scores of texts for queries."""

import dataclasses
from typing import ClassVar

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts
from roformer_keras.verbs.surfaces import Inputs, Output, Route
from roformer_keras.verbs.vectors import VectorVerb

_PAIR_TASKS = ("RoFormerTextClassifier", "RoFormerTextRegressor")


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rerank(VectorVerb):
    """Score how well texts fit a query, by a classifier of pairs or by vectors.

    Args:
        source: of the model: a folder of `finetune`, or one with vectors (default:
            roformer-sim-char).
        label: class of a classifier whose probability is the score; of two classes the
            second if not given.
    """

    label: str | None = None

    name = "rerank"
    inputs = Inputs(
        ("query", "text"),
        file="pairs of a query and a text, as similarity takes them; with --query only "
        "texts, one a line, or a table as embed takes it; - is standard input",
        needs_file=True,
        flag="query",
        typed="of all texts",
        is_shared=True,
        columns="keys or columns of the two texts (default: first,second, or the first "
        "two columns)",
    )
    output = Output(
        {"score": float},
        ".jsonl, or .tsv with rows of query, text and score; - for JSON lines on "
        "standard output",
    )
    route = Route(
        "/v1/rerank",
        "documents",
        "results",
        style="ranking",
        others=("/v2/rerank",),
        left_out=("max_length",),
    )
    examples = (
        "rerank pairs.tsv -o scores.tsv",
        "rerank answers.txt --query 怎么办信用卡",
    )
    otherwise = "RoFormerSim"
    takes: ClassVar[tuple[str, ...]] = (*VectorVerb.takes, *_PAIR_TASKS)

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        if loaded.name in _PAIR_TASKS:
            from roformer_keras.search.rerank import ranks_pairs

            return ranks_pairs(loaded.model) and 2 in loaded.tuned.answer_counts
        return loaded.name != "RoFormerBackbone" and super().is_for(loaded)

    def check(self, loaded: LoadedSource, row: Texts) -> None:
        if loaded.name in _PAIR_TASKS:
            from roformer_keras.search.rerank import ranks_pairs, scorer_of

            refuse(
                ranks_pairs(loaded.model) and 2 not in loaded.tuned.answer_counts,
                f"{self.source} was trained on single texts; ranking needs a "
                "model of pairs, or one with vectors",
            )
            scorer_of(loaded.model, self.label)
        elif self.label is not None:
            raise ConfigurationError("label is for classifiers of pairs")
        super().check(loaded, row)

    def answer(
        self, loaded: LoadedSource, rows: Rows, numbers: Numbers, on_step: OnStep = None
    ) -> Answers:
        from roformer_keras.search.cosines import pair_cosines
        from roformer_keras.search.rerank import scorer_of
        from roformer_keras.tasks.labels import rounded

        if loaded.name in _PAIR_TASKS:
            scorer = scorer_of(loaded.model, self.label)
            scores = scorer(list(rows), verbose=0, **self.computing)
        else:
            scores = pair_cosines(self.encoder(loaded), *zip(*rows, strict=True))
        return {"score": list(map(rounded, scores))}
