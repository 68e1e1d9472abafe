"""Problems as OpenAI's API tells them, for what stands under ``/v1``: its packages find a message in no other shape.

They try again by themselves on 408, 409, 429 and 5xx. Of a turn that was stored, that would be a second turn: so they
are told not to, but where trying again is what helps.
"""

from nanohost.lib.errors import BodyTooSlow, NotAuthenticated, Problem, Unavailable

PREFIX = "/v1/"

# Our codes that OpenAI has a name of its own for, which programs look for.
_CODES = {
    NotAuthenticated.code: "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "llm_context_too_long": "context_length_exceeded",
    "llm_content_filter": "content_filter",
    "unsupported_file_type": "unsupported_content_type",
}
_TYPES = {401: "authentication_error", 402: "insufficient_quota", 403: "permission_error", 429: "rate_limit_error"}

# Nothing was stored, and it may pass soon.
_MAY_PASS = {Unavailable.code, BodyTooSlow.code, "intake_paused", "draining"}


def is_of_openai_api(path: str) -> bool:
    """Whether an address is one of OpenAI's API."""
    return path.startswith(PREFIX)


def error_body(error: Problem, message: str) -> dict[str, object]:
    """The body of a problem. ``message``: its detail, without secrets."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    told = {"message": message, "type": kind, "param": error.members.get("param"), "code": code_of(error)}
    return {"error": told}


def code_of(error: Problem) -> str:
    """The code that a problem has here."""
    return _CODES.get(error.code, error.code)


def retry_headers(error: Problem) -> dict[str, str]:
    """What a client is told of trying again; of 429 it goes by Retry-After."""
    if error.code in _MAY_PASS:
        return {"x-should-retry": "true"}
    return {"x-should-retry": "false"} if error.status == 409 or error.status >= 500 else {}
