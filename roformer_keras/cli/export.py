"""`roformer-keras export`."""

from pathlib import Path
from typing import Literal

from roformer_keras.cli.generate import load_model as load_generator
from roformer_keras.cli.terminal import start_backend
from roformer_keras.cli.texts import print_json, read_lines
from roformer_keras.registry import task_of
from roformer_keras.tasks.sources import (
    check_no_files,
    load_encoder,
    load_sim,
    set_vocabulary,
)

EXAMPLES = (
    "export roformer-sim-char served --format onnx --int8",
    "export reviews served",
    "export roformer-gpt-char writer --generator --int8",
)


def run(
    source: str,
    target: str,
    *,
    format: Literal["saved_model", "onnx", "openvino"] | None = None,
    int8: bool = False,
    generator: bool = False,
    calibration_texts: str | None = None,
    config: str | None = None,
    vocabulary: str | None = None,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Write a model that runs without this package and without Keras.

    A fine-tuned model gives its answers, RoFormerSim its vectors; any other model gives
    the output of each position, and the pooled output if it has a pooler. With
    --generator it is a model that writes, for generate and paraphrase.

    Args:
        target: folder.
        format: of the model (default: saved_model, with --generator openvino).
        int8: compute products of integers, with --format onnx and openvino; of a
            generator store weights in 8 bits.
        generator: export what generate runs, not what the model computes for a text.
        calibration_texts: file of some 100 typical texts, one a line; for --int8 with
            --format openvino.
    """
    start_backend()
    from roformer_keras.export import check_export, export_model
    from roformer_keras.io.atomic import check_target

    # Checked before a model is loaded.
    check_target(Path(target), overwrite, folder=True)
    texts = () if calibration_texts is None else read_lines(calibration_texts)
    if generator:
        from roformer_keras.export import check_generator_export, export_generator

        format = format or "openvino"
        check_generator_export(format, texts)
        model = load_generator(source, None, False, config, vocabulary)
        found = export_generator(
            model, target, format=format, int8=int8, overwrite=overwrite
        )
        _show_generator(target, found, as_json)
        return
    format = format or "saved_model"
    check_export(format, int8, texts)
    found = export_model(
        _load(source, config, vocabulary),
        *(target, format),
        int8=int8,
        calibration_texts=texts,
        overwrite=overwrite,
    )
    if as_json:
        print_json(found)
        return
    print(target)
    for name, shape in found["outputs"].items():
        difference = found["differences"][name]
        print(
            f"  {name:<20} {shape:<28} to Keras at most {difference['largest']:.1e}, "
            f"mean {difference['mean']:.1e}, cosine at least "
            f"{difference['min_cosine']:.6f}"
        )


def _show_generator(target, found, as_json):
    if as_json:
        print_json(found)
        return
    difference = found["differences"]
    print(target)
    print(
        f"  {found['model']}, logits to Keras at most {difference['largest']:.1e}, "
        f"mean {difference['mean']:.1e}"
    )


def _load(source, config, vocabulary):
    """A fine-tuned model, a `RoFormerSim`, or else the encoder."""
    from roformer_keras.models.preset import opened_checkpoint
    from roformer_keras.tasks.load import load_model, model_class

    with opened_checkpoint(source, config) as checkpoint:
        name = model_class(checkpoint)
        if task_of(name):
            check_no_files(source, config, vocabulary)
            return load_model(checkpoint)
    if name == "RoFormerSim":
        return load_sim(source, config, vocabulary)
    return set_vocabulary(load_encoder(source, config), source, vocabulary)
