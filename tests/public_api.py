"""A user's code, with the types that mypy must find; it is checked and never run.

`mypy` reads it together with the package, see `pyproject.toml`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np

import roformer_keras
from roformer_keras import (
    FinetuningSettings,
    OptimizerSettings,
    PretrainingSettings,
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerConfig,
    RoFormerMaskedLM,
    RoFormerMultipleChoice,
    RoFormerQuestionAnswerer,
    RoFormerRelationExtractor,
    RoFormerSentenceEncoder,
    RoFormerSim,
    RoFormerSpanExtractor,
    RoFormerTextClassifier,
    RoFormerTextRegressor,
    RoFormerTokenClassifier,
    RoFormerTokenizer,
    RoFormerTripletRanker,
)
from roformer_keras.generation import ServedGenerator
from roformer_keras.generation.generate import Scored
from roformer_keras.models.fill_mask import MaskCandidate
from roformer_keras.models.preset import PresetModel
from roformer_keras.tasks import Relation, Span
from roformer_keras.tasks.finetuned import FinetunedTask
from roformer_keras.tasks.task import TextTask
from roformer_keras.verification.verify import Report

TEXTS = ["今天天气不错", "你好"]
PAIRS = [("今天天气不错", "天气真好"), ("你好", "再见")]


def tokenize(folder: Path) -> None:
    tokenizer = RoFormerTokenizer.from_preset("roformer-char")
    assert_type(tokenizer, RoFormerTokenizer)
    assert_type(tokenizer(TEXTS, max_length=16), dict[str, np.ndarray])
    assert_type(tokenizer.encode("你好"), tuple[list[int], list[int]])
    assert_type(tokenizer.tokenize("你好"), list[str])
    assert_type(tokenizer.offsets("你好"), list[tuple[int, int]])
    assert_type(tokenizer.decode([101, 102]), str)
    assert_type(tokenizer.mask_id, int)
    assert_type(tokenizer.simplified(), tuple[RoFormerTokenizer, list[int]])
    tokenizer.save_to_preset(folder)


def configure() -> None:
    config = RoFormerConfig(vocabulary_size=100, num_layers=2)
    assert_type(config.replace(dropout=0.2), RoFormerConfig)
    assert_type(RoFormerConfig.from_bert_config({}), RoFormerConfig)
    assert_type(config.head_dim, int)
    backbone = RoFormerBackbone(config, dtype="bfloat16")
    assert_type(backbone.config, RoFormerConfig)
    RoFormerMaskedLM(backbone, output_activation="softmax")


def load(folder: Path) -> None:
    backbone = RoFormerBackbone.from_preset("roformer-char", dropout=0.2)
    assert_type(backbone, RoFormerBackbone)
    assert_type(backbone.freeze(layers=6), int)
    assert_type(backbone.enable_lora(8), int)
    assert_type(backbone.load_lora("adapter.safetensors"), int)
    backbone.save_to_preset(folder, overwrite=True)
    assert_type(RoFormerSim.from_preset(folder), RoFormerSim)
    assert_type(roformer_keras.load_model(folder), PresetModel)
    assert_type(roformer_keras.download("roformer-char"), Path)
    assert_type(roformer_keras.convert(folder, "model.keras"), Path)
    assert_type(roformer_keras.push_to_hub(folder, "owner/name", token="x"), str)


def fill_mask() -> None:
    model = RoFormerMaskedLM.from_preset("roformer-char")
    assert_type(model.fill_mask("今天[MASK]气不错"), list[list[MaskCandidate]])
    assert_type(model.fill_mask(["今天[MASK]气不错"]), list[list[list[MaskCandidate]]])
    model.fit(TEXTS, epochs=3, options={"whole_word": True})
    assert_type(model.config, RoFormerConfig)


def write() -> None:
    model = RoFormerCausalLM.from_preset("roformer-gpt-char")
    assert_type(model, RoFormerCausalLM)
    assert_type(model.generate("今天天气", stop_tokens="。"), str)
    assert_type(model.generate(TEXTS, seed=1, top_k=5), list[str])
    assert_type(model.generate("今天", num_return_sequences=3), list[str])
    scored = model.generate("今天", return_scores=True)
    assert_type(scored, str | Scored | list[Any])
    assert_type(model.stream("今天"), Iterator[str])
    assert_type(model.generate("今天", engine="openvino"), str)
    assert_type(model.generate("今天", engine="openvino-int8"), str)
    served = ServedGenerator("served")
    assert_type(served.generate("今天", seed=1), str)
    assert_type(served.paraphrase("今天", n=24), list[Scored])


def compare() -> None:
    model = RoFormerSim.from_preset("roformer-sim-char")
    assert_type(model.encode("你好"), np.ndarray)
    assert_type(model.encode(TEXTS, max_length=64), np.ndarray)
    assert_type(model.encode(iter(TEXTS)), Iterator[np.ndarray])
    assert_type(model.similarity("你好", "再见"), float)
    assert_type(model.similarity(TEXTS, TEXTS), np.ndarray)
    assert_type(model.paraphrase("你好", n=24, k=3, seed=1), list[Scored])
    assert_type(model.paraphrase(TEXTS), list[list[Scored]])
    encoder = RoFormerSentenceEncoder.from_preset("roformer-char")
    assert_type(encoder, RoFormerSentenceEncoder)
    encoder.fit(PAIRS, [5, 1])
    assert_type(encoder.encode(TEXTS), np.ndarray)
    assert_type(encoder.encode(iter(TEXTS)), Iterator[np.ndarray])
    assert_type(encoder.similarity("他来了", "他到了"), float)
    assert_type(encoder.similarity(TEXTS, TEXTS), np.ndarray)


def classify() -> None:
    classifier = RoFormerTextClassifier.from_preset("roformer-char", num_classes=2)
    assert_type(classifier, RoFormerTextClassifier)
    classifier.compile(roformer_keras.optimizers.make_optimizer(1e-4), r_drop=1.0)
    classifier.fit(TEXTS, [1, 0], validation_split=0.5)
    assert_type(classifier.classify(TEXTS), list[Any])
    assert_type(classifier.classify(TEXTS, probabilities=True), np.ndarray)
    assert_type(classifier.classify(iter(TEXTS)), Iterator[Any])
    assert_type(classifier.predict(iter(TEXTS)), Iterator[np.ndarray])
    metrics = classifier.evaluate(TEXTS, [1, 0])
    assert_type(metrics, float | list[float] | dict[str, float])
    assert_type(classifier.num_classes, int)
    assert_type(classifier.classes, list[Any] | None)
    regressor = RoFormerTextRegressor.from_preset("roformer-char")
    assert_type(regressor.regress(PAIRS), np.ndarray)
    ranker = RoFormerTripletRanker.from_preset("roformer-char")
    assert_type(ranker.rank([("甲", "乙", "丙")]), list[str])
    assert_type(ranker.rank([("甲", "乙", "丙")], probabilities=True), np.ndarray)


def find() -> None:
    extractor = RoFormerSpanExtractor.from_preset("roformer-char", labels=["LOC"])
    assert_type(extractor.extract(TEXTS), list[list[Span]])
    relations = RoFormerRelationExtractor.from_preset("roformer-char", labels=["在"])
    assert_type(relations.extract(TEXTS), list[list[Relation]])
    tagger = RoFormerTokenClassifier.from_preset("roformer-char", labels=["LOC"])
    assert_type(tagger.extract(iter(TEXTS)), Iterator[list[Span]])
    answerer = RoFormerQuestionAnswerer.from_preset("roformer-char")
    assert_type(answerer.answer([("他在哪里？", "他在上海。")]), list[Span | None])
    chooser = RoFormerMultipleChoice.from_preset("roformer-char")
    rows = [("他在上海。", "他在哪里？", ["北京", "上海"])]
    assert_type(chooser.choose(rows), list[int])
    assert_type(chooser.choose(rows, probabilities=True), list[np.ndarray])


def train(folder: Path) -> None:
    optimizer = OptimizerSettings(weight_decay=0.1)
    settings = FinetuningSettings(
        task="text-classification", train="train.tsv", optimizer=optimizer
    )
    assert_type(roformer_keras.finetune(settings, folder), TextTask)
    assert_type(roformer_keras.load_finetuned(folder), FinetunedTask)
    tuned = roformer_keras.load_finetuned(folder)
    assert_type(tuned.answer([("你好",)]), list[dict])
    assert_type(tuned.evaluate("test.tsv"), dict)
    pretraining = PretrainingSettings.from_toml("pretraining.toml")
    assert_type(pretraining, PretrainingSettings)
    assert_type(roformer_keras.pretrain(pretraining, folder), PresetModel)


def measure() -> None:
    report = roformer_keras.verify("roformer-char", lengths=(1, 64))
    assert_type(report, Report)
    assert_type(report.passed, bool)
