"""The commands of the verbs, each made from its class."""

import inspect
import types
from typing import Any

from roformer_keras.base.types import EngineOrRay
from roformer_keras.cli import layouts
from roformer_keras.cli.flags import read_docstring
from roformer_keras.verbs.verb import Verb

RAY = "roformer_keras.distributed.files.RayOptions"
_RESUMED = """

A command that is interrupted keeps what it has written in FILE.partial; the same
command resumes it.
"""


def command_of(kind: type[Verb]) -> types.SimpleNamespace:
    """The command of a verb, as `cli.main` takes the modules of others."""
    spec = kind.inputs
    operand, flag = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    explained = read_docstring(kind)
    helps = {"output": kind.output.help}
    # A verb may say more of these than others do.
    helps |= {
        name: explained[name] for name in ("engine", "encoding") if name in explained
    }
    if spec.columns:
        helps["fields"] = spec.columns
    parameters = [
        inspect.Parameter(name, operand, annotation=str) for name in spec.operands
    ]
    if not spec.file:
        parameters.append(inspect.Parameter("texts", operand, annotation=list[str]))
        helps["texts"] = spec.typed
    else:
        optional: dict[str, Any] = {} if spec.needs_file else {"default": None}
        parameters.append(
            inspect.Parameter("file", operand, annotation=str | None, **optional)
        )
        helps["file"] = spec.file
    if spec.flag:
        row = {0: list[str], 1: str, 2: tuple[str, str]}[spec.count]
        typed = str if spec.is_shared else list[row]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(spec.flag, flag, default=None, annotation=typed | None)
        )
        helps[spec.flag] = spec.typed
    for name, default, annotation in (
        ("output", "-", str),
        ("engine", "auto", EngineOrRay),
        ("as_json", False, bool),
    ):
        parameters.append(
            inspect.Parameter(name, flag, default=default, annotation=annotation)
        )
    parameters.append(inspect.Parameter("flags", inspect.Parameter.VAR_KEYWORD))

    def run(**values: object) -> None:
        from roformer_keras.cli.answering import Answering

        Answering(kind, values).run()

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    summary = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    arguments = "".join(f"    {name}: {help}.\n" for name, help in helps.items())
    run.__doc__ = f"{summary}{_RESUMED}\nArgs:\n{arguments}"
    return types.SimpleNamespace(
        run=run,
        EXAMPLES=kind.examples,
        OPTIONS=(kind, layouts.layout_of(spec), layouts.JobFlags),
        SETTINGS={"ray": RAY},
    )
