"""What OpenAI's API alone refuses. ``param`` names what in the body it is about."""

from nanohost.lib.errors import Problem


class ModelNotFound(Problem):
    """No agent is called as the request calls its model, or the key may not name it."""

    code, status, title = "model_not_found", 404, "There is no agent of that name, or this key may not name it."
