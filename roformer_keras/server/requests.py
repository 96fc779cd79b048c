"""Requests of a verb: a pydantic model made from its options, rows and responses."""

import dataclasses
import difflib
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from roformer_keras.server.errors import JSONAnswer, Refusal
from roformer_keras.server.models import ServedModel
from roformer_keras.server.options import MOST_TEXTS
from roformer_keras.verbs.rows import OnStep, Texts
from roformer_keras.verbs.surfaces import Kind
from roformer_keras.verbs.verb import Verb

# Bounds of a field of settings, and pydantic's names of them.
_BOUNDS = {"minimum": "ge", "maximum": "le", "above": "gt", "below": "lt"}
NO_OBJECT = (
    "the body must be a JSON object in UTF-8, sent with the header Content-Type: "
    "application/json"
)
# Words of pydantic, and those of JSON.
_WORDS = (
    ("^Field required$", "must be given"),
    ("a valid array", "a list"),
    ("a valid string", "a text"),
    (r"a valid (\w+), unable .*", r"a \1"),
    ("^Input should be a (?=integer)", "must be an "),
    ("^Input should be", "must be"),
)
_JSON_TYPES = {str: "string", int: "integer", bool: "boolean"}
# Options that the server has.
SERVED = ("source", "config", "vocabulary", "batch_tokens", "batch_size", "engine")


class Request(BaseModel):
    """The body of a request, or an object in it; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Style:
    """Translates requests to rows and options of a verb, and answers to responses.

    A subclass follows the API of another server.

    Attributes:
        base: fields of a request besides the options.
        body: model of the requests.
    """

    base: ClassVar[type[BaseModel]] = Request

    def __init__(self, verb: Verb, model: ServedModel, model_name: str):
        assert verb.route is not None
        self.verb, self.route, self.model = verb, verb.route, model
        self.model_name = model_name
        self.body = self._body()

    def _body(self) -> type[BaseModel]:
        fields: dict[str, Any] = {}
        if self.base is Request:
            count = len(self.verb.inputs.fields)
            row: Any = str if count == 1 else tuple[(str,) * count]  # type: ignore[misc]
            if not count:
                # Only the model knows how many texts a row has.
                row = str | Annotated[list[str], Field(max_length=64)]
            fields[self.route.texts] = list[row], Field(max_length=MOST_TEXTS)
        # Fields of options that are not the base's own.
        self._options: dict[str, str] = {}
        hidden, known = {*SERVED, *self.route.left_out}, self.base.model_fields
        for field in dataclasses.fields(self.verb):
            name = self.route.renamed.get(field.name, field.name)
            if field.init and name not in known and field.name not in hidden:
                self._options[field.name] = name
                fields[name] = _field(field, self.route.changes.get(field.name, {}))
        return pydantic.create_model(
            f"{type(self.verb).__name__}Request", __base__=self.base, **fields
        )

    def read(self, content_type: str, content: bytes) -> BaseModel:
        """A request. Raises Refusal if it breaks a rule."""
        if content_type.partition(";")[0] != JSONAnswer.media_type:
            raise Refusal(422, NO_OBJECT)
        try:
            return self.body.model_validate_json(content)
        except pydantic.ValidationError as error:
            errors = error.errors(include_url=False, include_input=False)
            text = explain_invalid(errors, self.body.model_fields)
            raise Refusal(422, text) from None

    def rows(self, body: BaseModel) -> list[Texts]:
        """The rows of a request."""
        rows = getattr(body, self.route.texts)
        rows = [rows] if isinstance(rows, str) else rows
        return [(row,) if isinstance(row, str) else tuple(row) for row in rows]

    def options(self, body: BaseModel) -> dict[str, object]:
        """The options of the verb that a request has."""
        return {option: getattr(body, name) for option, name in self._options.items()}

    def answer(
        self, verb: Verb, rows: Sequence[Texts], on_step: OnStep = None
    ) -> Sequence[object]:
        """The answers to rows, which may be those of several requests."""
        return self.model.answer(verb, rows, on_step)

    def events(self, verb: Verb, body: BaseModel, row: Texts, tokens: int) -> object:
        """An object as `openai.CompletionEvents` if a stream answers, else None."""
        return None

    def response(
        self, body: BaseModel, rows: Sequence[Texts], answers: Sequence, tokens: int
    ) -> dict[str, object]:
        """The JSON of a response; `tokens` is the number of tokens of all rows."""
        return {self.route.answers: self._shown(answers)}

    def _shown(self, answers: Sequence) -> list:
        if not (names := self.route.shown):
            return list(answers)
        return [
            [{names.get(name, name): row[name] for name in row} for row in answer]
            for answer in answers
        ]

    @property
    def response_schema(self) -> dict:
        """The JSON schema of a response, as far as the class of the verb says it."""
        columns = dict(self.verb.output.columns)
        if self.base is not Request or not columns:
            return {}
        kind = columns if len(columns) > 1 else columns.popitem()[1]
        return _schema({self.route.answers: self._shown([kind])})


def _schema(kind: Kind) -> dict:
    if isinstance(kind, list):
        return {"type": "array", "items": _schema(kind[0])}
    if isinstance(kind, dict):
        fields = {name: _schema(inner) for name, inner in kind.items()}
        return {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": _JSON_TYPES.get(kind, "number")}


def explain_invalid(errors: Sequence[Mapping], fields: Collection[str]) -> str:
    """Says which field of a request breaks which rule."""
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    error = (unknown or errors)[0]
    if not error["loc"]:
        reason = error.get("ctx", {}).get("error")
        return f"{NO_OBJECT}: {reason}" if reason else NO_OBJECT
    field = ".".join(map(str, error["loc"]))[:80]
    if unknown:
        near = difflib.get_close_matches(field, fields, n=1)
        hint = f"did you mean {near[0]}?" if near else "see /openapi.json"
        return f"{field}: this route has no such field: {hint}"
    text = error["msg"]
    for theirs, ours in _WORDS:
        text = re.sub(theirs, ours, text)
    return f"{field}: {text:.200}"


def _field(field: dataclasses.Field, changes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Type and rules of an option, which takes null only if that is its default."""
    rules = {
        _BOUNDS[bound]: value
        for bound, value in field.metadata.items()
        if bound in _BOUNDS and value is not None
    }
    rules = {"default": field.default, **rules, **changes}
    if choices := field.metadata.get("choices"):
        return Literal[choices], Field(**rules)
    kinds = [kind for kind in typing.get_args(field.type) if kind is not type(None)]
    is_required = len(kinds) == 1 and rules["default"] is not None
    return kinds[0] if is_required else field.type, Field(**rules)
