"""JSON Schemas, made from a function's signature."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import docstring_parser
from pydantic import Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from tools.errors import ToolDefinitionError
from tools.registry import is_caller


class _WithoutTitles(GenerateJsonSchema):
    """Titles repeat the names: tokens a model pays for and learns nothing from."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def arguments_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON Schema of a function's arguments, their descriptions read off its docstring.

    Raises :class:`ToolDefinitionError` for an argument of a type that is not known, or that JSON cannot carry.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ToolDefinitionError(f"{function.__name__}: a type of its arguments is not known: {error}.") from None
    described = {param.arg_name: param.description for param in docstring_parser.parse(function.__doc__ or "").params}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if is_caller(parameter):
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], Field(default, description=described.get(parameter.name)))
    try:
        model = create_model("Arguments", __config__={"extra": "forbid"}, **fields)
        schema: dict[str, Any] = model.model_json_schema(schema_generator=_WithoutTitles)
    except (PydanticUserError, NameError) as error:
        raise ToolDefinitionError(f"{function.__name__}: {error}") from None
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema
