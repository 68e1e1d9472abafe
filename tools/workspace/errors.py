"""What can be wrong with a path or a file. Each is a ValueError: its words are for whoever asks, model or person."""


class PathRefused(ValueError):
    """A path leads out of its folder, or to something that is no file of it."""


class NotText(ValueError):
    """A file cannot be shown: it is binary, too large, or in no encoding that is read."""


class Full(ValueError):
    """A workspace has no room for it."""


class Protected(ValueError):
    """A file that no tool changes."""
