"""How the API reads bodies, chooses a representation and reports problems."""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer

from nanohost.lib import errors, openai_errors
from nanohost.lib.redaction import redact_head, redact_known
from nanohost.lib.text import UNSTORABLE

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"

# Of what a client sent, a problem quotes as much: it is read for secrets, and logged.
MAX_QUOTED = 2000

# Deeper than any metadata a person writes, shallower than any recursion limit.
MAX_DEPTH = 64


class AlwaysJSON(BaseContentNegotiation):
    """The API speaks JSON whatever ``Accept`` says, so that a client that asks for a stream gets an answer, not 406."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        # A body without a type is taken for JSON, as curl users expect; a form is not.
        return parsers[0] if media_type in ("", "application/json") else None

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class RedactedJSONRenderer(JSONRenderer):
    """JSON without this host's own secrets, however they came into it."""

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> Any:
        body = super().render(data, accepted_media_type, renderer_context)
        return redact_known(body.decode()).encode()


class StorableJSONParser(JSONParser):
    """JSON as RFC 8259 has it, and only what every database can store: no NaN, NUL, lone surrogate or abyss."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return load_json(stream.read())


def load_json(raw: bytes) -> Any:
    """A body as RFC 8259 has it, and only what every database can store; raises :class:`errors.InvalidRequest`."""
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
        _refuse_unstorable(value)
    except RecursionError:
        raise errors.InvalidRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.") from None
    except UnicodeDecodeError:
        raise errors.InvalidRequest("The body is not UTF-8.") from None
    except ValueError as error:
        raise errors.InvalidRequest(f"The body is not valid JSON: {error}.") from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError("a number is too large")
    return value


def _refuse_unstorable(root: Any) -> None:
    """Walks level by level, so that depth costs no stack."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if UNSTORABLE.search(value):
                    raise ValueError("a text holds a null character or half a surrogate pair")
            elif isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
        if not below:
            return
        level = below
    raise RecursionError


def problem(error: errors.Problem, request_id: str = "") -> dict[str, object]:
    """The RFC 9457 members of a problem."""
    members: dict[str, object] = {
        "type": "about:blank",
        "title": error.title,
        "status": error.status,
        "code": error.code,
        "detail": redact_head(error.detail, MAX_QUOTED),
        "requestId": request_id,
    }
    return members | {name: _quoted(value) for name, value in error.members.items()}


def _quoted(value: object) -> object:
    """A member without secrets: what is wrong with a field may quote what it holds."""
    if isinstance(value, str):
        return redact_head(value, MAX_QUOTED)
    if isinstance(value, dict):
        return {redact_head(str(name), MAX_QUOTED): _quoted(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quoted(inner) for inner in value]
    return value


# What DRF raises, as problems of ours.
_BY_STATUS: Mapping[int, type[errors.Problem]] = {
    400: errors.InvalidRequest,
    401: errors.NotAuthenticated,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    415: errors.UnsupportedMediaType,
}


def as_problem(exception: Exception) -> errors.Problem:
    """Any exception as the problem its caller is told of; unknown ones are a plain 500."""
    if isinstance(exception, errors.Problem):
        return exception
    if isinstance(exception, Http404):
        return errors.NotFound()
    if isinstance(exception, RequestDataTooBig):
        return errors.BodyTooLarge()
    if isinstance(exception, SuspiciousOperation):  # more query parameters than Django reads, for one
        return errors.InvalidRequest()
    if isinstance(exception, (OperationalError, InterfaceError)):
        return errors.Unavailable(headers={"Retry-After": "1"})
    if isinstance(exception, exceptions.ValidationError):
        return errors.InvalidRequest("; ".join(_sentences(exception.detail)), errors=exception.detail)
    if isinstance(exception, exceptions.APIException):
        kind = _BY_STATUS.get(exception.status_code, errors.Problem)
        return kind(str(exception.detail) if kind is not errors.Problem else "")
    return errors.Problem()


def _sentences(detail: Any, path: str = "") -> list[str]:
    if isinstance(detail, dict):
        return [s for key, value in detail.items() for s in _sentences(value, f"{path}.{key}" if path else str(key))]
    if isinstance(detail, list):
        return [s for value in detail for s in _sentences(value, path)]
    return [f"{path}: {detail}" if path and path != "non_field_errors" else str(detail)]


def problem_response(exception: Exception, context: dict[str, Any]) -> JsonResponse:
    """DRF's exception handler: everything leaves as a problem of the API that was asked, whatever the view renders."""
    known = as_problem(exception)
    if isinstance(known, errors.Unavailable):
        logger.warning("the database is away (%s)", type(exception).__name__)
    elif known.status >= 500 and not isinstance(exception, errors.Problem):
        logger.error("request failed", exc_info=exception)
    response = plain_problem(context["request"], known)
    if known.status == 503:
        # Told above, or refused on purpose, as while the intake is paused: Django would log an error for each request.
        response._has_been_logged = True  # type: ignore[attr-defined]  # Django's own mark
    if known.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="nanohost"'
    if isinstance(exception, exceptions.MethodNotAllowed):
        response["Allow"] = ", ".join(context["view"].allowed_methods)
    return response


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a caller is told of a problem."""

    body: dict[str, object]
    content_type: str
    headers: dict[str, str]


def as_told(error: errors.Problem, *, path: str, request_id: str) -> Told:
    """A problem in the shape of the API that was asked, which its address tells."""
    if openai_errors.is_of_openai_api(path):
        body = openai_errors.error_body(error, redact_head(error.detail, MAX_QUOTED))
        headers = error.headers | openai_errors.retry_headers(error)
        return Told(body=body, content_type="application/json", headers=headers)
    return Told(body=problem(error, request_id), content_type=PROBLEM_TYPE, headers=error.headers)


def plain_problem(request: HttpRequest, error: errors.Problem) -> JsonResponse:
    """A problem as Django's response; its error views use it too, for addresses of the APIs."""
    told = as_told(error, path=request.path_info, request_id=request.META.get("HTTP_X_REQUEST_ID", ""))
    return JsonResponse(
        told.body,
        status=error.status,
        content_type=told.content_type,
        headers=told.headers,
        json_dumps_params={"ensure_ascii": False},
    )
