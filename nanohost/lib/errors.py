"""Problems an API client is told of: a class each, which carries its code, its HTTP status and its meaning."""


class Problem(Exception):
    """Something the caller is told in application/problem+json (RFC 9457)."""

    code: str = "internal_error"
    status: int = 500
    title: str = "The server failed; the failure is logged under the request's id."

    def __init__(self, detail: str = "", *, headers: dict[str, str] | None = None, **members: object) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.headers = headers or {}
        self.members = members


class InvalidRequest(Problem):
    code, status, title = "invalid_request", 400, "The request's body, query or headers are not valid."


class NotAuthenticated(Problem):
    code, status, title = "not_authenticated", 401, "A valid API key is needed: Authorization: Bearer nh_…"


class NotFound(Problem):
    code, status, title = "not_found", 404, "There is no such thing, or it is not yours."


class MethodNotAllowed(Problem):
    code, status, title = "method_not_allowed", 405, "This address does not accept that method."


class BodyTooSlow(Problem):
    code, status, title = "body_too_slow", 408, "The body did not arrive in time."


class BodyTooLarge(Problem):
    code, status, title = (
        "body_too_large",
        413,
        "The body is larger than is allowed here; the detail says how large.",
    )


class UnsupportedMediaType(Problem):
    code, status, title = "unsupported_media_type", 415, "Send JSON, with Content-Type: application/json."


class HeadersTooLarge(Problem):
    code, status, title = "headers_too_large", 431, "The request's headers are too large."


class Unavailable(Problem):
    code, status, title = "unavailable", 503, "The database cannot be reached just now; try again."
