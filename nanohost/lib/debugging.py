"""Django's pages on errors, which DEBUG shows: without secrets, and to this machine alone."""

from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.core.handlers.exception import get_exception_response
from django.core.handlers.wsgi import WSGIHandler
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import get_resolver, get_urlconf
from django.views import defaults
from django.views.debug import ExceptionReporter, SafeExceptionReporterFilter

from nanohost.lib.locality import is_of_this_machine
from nanohost.lib.redaction import MASK, names_a_secret, redact, redact_known


class _Told:
    """Stands for a value: what it looks like, without secrets."""

    def __init__(self, text: str) -> None:
        self._text = redact(text)

    def __repr__(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)


class _Asked:
    """Stands for a request, with what the pages show of it."""

    def __init__(self, request: HttpRequest) -> None:
        self.path_info = redact(request.path_info)
        self.META = {"REQUEST_METHOD": request.method}
        self.GET, self.FILES, self.COOKIES = bool(request.GET), bool(request.FILES), bool(request.COOKIES)


class SecretsFilter(SafeExceptionReporterFilter):
    """``DEFAULT_EXCEPTION_REPORTER_FILTER``: settings, variables and what was sent, by our own filter of secrets."""

    cleansed_substitute = MASK

    def cleanse_setting(self, key: Any, value: Any) -> Any:
        """What is called a secret is masked, whatever it is; the rest loses the secrets in it."""
        if isinstance(key, str) and (names_a_secret(key) or self.hidden_settings.search(key)):
            return MASK
        return _told(value)

    def get_safe_request_meta(self, request: HttpRequest) -> dict[str, Any]:
        return {**super().get_safe_request_meta(request), "QUERY_STRING": MASK}

    def get_safe_cookies(self, request: HttpRequest) -> dict[str, Any]:
        return dict.fromkeys(request.COOKIES, MASK)

    def is_active(self, request: HttpRequest | None) -> bool:
        return True

    def get_post_parameters(self, request: HttpRequest | None) -> Any:
        return {name: self.cleanse_setting(name, value) for name, value in request.POST.items()} if request else {}

    def get_traceback_frame_variables(self, request: HttpRequest | None, tb_frame: Any) -> Any:
        kept = super().get_traceback_frame_variables(request, tb_frame)
        return [(name, self.cleanse_setting(name, value)) for name, value in kept]


class Reporter(ExceptionReporter):
    """``DEFAULT_EXCEPTION_REPORTER``: the page that tells of an exception, to whoever sits at this machine. Others get
    the page that there is without DEBUG."""

    def get_traceback_html(self) -> str:  # type: ignore[override]  # finished pages, which nobody escapes again
        return redact_known(super().get_traceback_html()) if self._is_shown() else self._ordinary()

    def get_traceback_text(self) -> str:  # type: ignore[override]  # plain text, which nobody marks as safe
        return redact_known(super().get_traceback_text()) if self._is_shown() else self._ordinary()

    def get_traceback_data(self) -> dict[str, Any]:
        """What the pages are made of. Texts lose their secrets here, before they are escaped."""
        data = super().get_traceback_data()
        for name in ("exception_value", "exception_notes", "request_insecure_uri", "user_str", "unicode_hint"):
            data[name] = redact(str(data[name])) if data.get(name) else data.get(name)
        if self.request:  # its query is shown value by value
            data["request_insecure_uri"] = data["request_insecure_uri"].partition("?")[0]
        for name in ("request_GET_items", "request_FILES_items"):
            data[name] = [(key, self.filter.cleanse_setting(key, value)) for key, value in data.get(name) or ()]
        for frame in data["frames"]:
            frame["exc_cause"] = frame.get("exc_cause") and redact(str(frame["exc_cause"]))
        if data.get("template_info"):
            data["template_info"] = {**data["template_info"], "message": redact(str(data["template_info"]["message"]))}
        if self.request:
            data["request"] = _Asked(self.request)
        return data

    def _is_shown(self) -> bool:
        return bool(settings.DEBUG and self.request and is_of_this_machine(self.request))

    def _ordinary(self) -> str:
        if self.request and isinstance(self.exc_value, SuspiciousOperation | BadRequest):
            return _text(defaults.bad_request(self.request, self.exc_value))
        return _text(defaults.server_error(self.request)) if self.request else "Server Error (500)"


class Handler(WSGIHandler):
    """Django. Its page of all addresses, DEBUG's answer for one that is none, is for this machine as well."""

    def _get_response(self, request: HttpRequest) -> HttpResponseBase:
        try:
            return super()._get_response(request)  # type: ignore[misc, no-any-return]  # not in the stubs
        except Http404 as error:
            if is_of_this_machine(request):
                raise
            return get_exception_response(request, get_resolver(get_urlconf()), 404, error)


def _text(page: HttpResponse) -> str:
    return page.content.decode()


def _told(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, HttpRequest):  # without its query, which is shown value by value
        return _Told(f"<{type(value).__name__}: {value.method} {value.path}>")
    try:
        return _Told(repr(value))
    except Exception as error:
        return f"a {type(value).__name__}, whose repr() failed: {type(error).__name__}"
