"""What can be wrong with an account's things."""

from nanohost.lib.errors import Problem


class MalformedKey(ValueError):
    """The text is not an API key."""


class MissingScope(Problem):
    """The key may not do this."""

    code, status, title = "missing_scope", 403, "This API key has no scope for that; the detail says which is needed."


class AddressNotAllowed(Problem):
    """The key is used from where it may not be."""

    code, status, title = "address_not_allowed", 403, "This API key may not be used from this address."


class RateLimited(Problem):
    """The key is used too often."""

    code, status, title = "rate_limited", 429, "This API key was used too often; try again after Retry-After."


class UnderLegalHold(Problem):
    """Something is to be deleted that a legal hold keeps."""

    code, status, title = "legal_hold", 409, "A legal hold keeps it; the detail says which."
