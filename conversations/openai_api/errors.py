"""What OpenAI's API alone refuses. ``param`` names what in the body it is about."""

from nanohost.lib.errors import Problem


class ModelNotFound(Problem):
    """No agent is called as the request calls its model, or the key may not name it."""

    code, status, title = "model_not_found", 404, "There is no agent with that name, or this key may not name it."


class InvalidValue(Problem):
    """Something in the body is not what it has to be."""

    code, status, title = "invalid_value", 400, "Something in the body is not valid; the message says what."


class UnsupportedParameter(Problem):
    """A parameter is named that nothing here would heed: it is refused rather than passed over."""

    code, status, title = "unsupported_parameter", 400, "This parameter is not supported here; leave it out."


class UnsupportedContent(Problem):
    """A message has a part that no agent would see."""

    code, status, title = "unsupported_content_type", 400, "A message has a part of a kind that is not supported here."


class ConversationNotFound(Problem):
    """The conversation that a request names is not there, or is not its key's."""

    code, status, title = "conversation_not_found", 404, "There is no conversation with that id, or it is not yours."


class ItemNotFound(Problem):
    """An item that a request names is not there."""

    code, status, title = "item_not_found", 404, "There is no item with that id in this conversation."


class ResponseNotFound(Problem):
    """A response that a request names is not there, or is not its key's."""

    code, status, title = "response_not_found", 404, "There is no response with that id, or it is not yours."


class PreviousResponseNotFound(Problem):
    """The same of the response that a new one is to go on from."""

    code, status = "previous_response_not_found", 400
    title = "There is no response with the id that previous_response_id names, or it is not yours."


class AnswerRestarted(Problem):
    """In the midst of a stream, the answer was begun again, and what was sent of it is void."""

    code, status = "answer_restarted", 502
    title = "The answer was restarted during this stream; send the same request again to get all of it."
