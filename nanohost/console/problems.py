"""Pages for what went wrong: in the console's looks, with a way back; for the API's addresses, problem details.

Whoever is signed in gets the whole console around it. Everybody else, and whoever meets a failure of ours, gets a page
that asks nothing of the database; should even that fail, a few lines of plain HTML.
"""

import logging
import sys
from http import HTTPStatus
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.template import loader

from nanohost.lib import errors, openai_errors
from nanohost.lib.ids import request_id
from nanohost.lib.redaction import redact_head
from nanohost.lib.rest import as_problem, plain_problem

logger = logging.getLogger(__name__)

# Of a sentence that says what was not found, at most.
MAX_CHARS = 300


class Forbidden(errors.Problem):
    """Whoever asked is known, and may not."""

    code, status, title = "forbidden", 403, "This is not allowed."


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400 from outside DRF, such as a Host that is not ours."""
    if _is_of_api(request):
        said = "The request's headers are not acceptable, its Host above all."
        return plain_problem(request, errors.InvalidRequest(said))
    return _page(request, 400, "The request is not valid", "The browser sent something that this host does not accept.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403: whoever asked may not."""
    if _is_of_api(request):
        return plain_problem(request, Forbidden())
    words = _words_of(exception) or "Your role does not include this. An admin of this host can change that."
    return _page(request, 403, "You may not do this", words)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form without a token that is good here."""
    if _is_of_api(request):
        return plain_problem(request, Forbidden())
    words = (
        "Nothing was done: the form was too old, was sent by another site, or the browser keeps no cookies of this"
        " host. Go back, load the page again, and send it once more."
    )
    return _page(request, 403, "The form was not accepted", words)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404 for an address that is none, or for a row that is gone."""
    if _is_of_api(request):
        return plain_problem(request, errors.NotFound("There is no such address."))
    words = _words_of(exception) or "The address is wrong, or the page was deleted."
    return _page(request, 404, "There is no such page", words)


def server_error(request: HttpRequest) -> HttpResponse:
    """500 from outside DRF; 503 while the database is away."""
    known = as_problem(error) if isinstance(error := sys.exception(), Exception) else errors.Problem()
    if isinstance(known, errors.Unavailable):
        return _unavailable(request, known, error)
    if _is_of_api(request):
        return plain_problem(request, errors.Problem())
    number = request_id(request.META.get("HTTP_X_REQUEST_ID"))
    words = f"The failure is in the log, under the request {number}. If it lasts, ask the administrator of this host."
    return _page(request, 500, "The server failed", words)


def _unavailable(request: HttpRequest, known: errors.Unavailable, error: BaseException | None) -> HttpResponse:
    logger.warning("the database is away (%s)", type(error).__name__)
    if _is_of_api(request):
        response: HttpResponse = plain_problem(request, known)
    else:
        words = "Its database cannot be reached just now. Nothing is lost; load the page again in a moment."
        response = _page(request, 503, "The server is not available", words)
        for name, value in known.headers.items():
            response[name] = value
    response._has_been_logged = True  # type: ignore[attr-defined]  # Django's own mark: it would log a traceback
    return response


def _is_of_api(request: HttpRequest) -> bool:
    return request.path.startswith(("/api/", openai_errors.PREFIX))


def _words_of(exception: Exception) -> str:
    """The sentence somebody of ours gave with it; Django's own exceptions carry other things."""
    said = exception.args[0] if exception.args else ""
    return redact_head(said, MAX_CHARS) if isinstance(said, str) else ""


def _page(request: HttpRequest, status: int, title: str, words: str) -> HttpResponse:
    told = {"title": title, "words": words, "status": status}
    for render in (_within_the_console, _alone):
        try:
            return HttpResponse(render(request, told), status=status)
        except Exception:
            logger.debug("the page of a problem could not be made in this way: %s", render.__name__, exc_info=True)
    phrase = HTTPStatus(status).phrase
    plain = f'<!DOCTYPE html><html lang="en"><title>{phrase}</title><h1>{phrase}</h1><p><a href="/admin/">Back</a></p>'
    return HttpResponse(plain, status=status)


def _within_the_console(request: HttpRequest, told: dict[str, Any]) -> str:
    if told["status"] >= 500 or not admin.site.has_permission(request):
        raise LookupError("for those who are signed in, and while nothing has failed")
    context = admin.site.each_context(request) | told
    return loader.get_template("console/problem.html").render(context, request)


def _alone(request: HttpRequest, told: dict[str, Any]) -> str:
    """As a stranger to whom nothing is known gets it: no session is read, and no row."""
    stranger: Any = HttpRequest()
    stranger.user, stranger.path, stranger.META = AnonymousUser(), request.path, {"SCRIPT_NAME": ""}
    stranger.csp_nonce = getattr(request, "csp_nonce", "")
    context = admin.site.each_context(stranger) | told
    return loader.get_template("console/problem_alone.html").render(context, stranger)
