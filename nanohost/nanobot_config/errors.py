"""Why a config.json cannot be imported or written."""


class Refused(Exception):
    """The file cannot be taken in: says where it is broken, and how, without any of its values."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}" if where else what)
