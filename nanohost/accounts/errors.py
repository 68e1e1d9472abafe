"""What can be wrong with an account's things."""


class MalformedKey(ValueError):
    """The text is not an API key."""
