"""OpenAI's API, under ``/v1``: a model is an agent, a completion is a turn.

``errors``: what this API alone refuses. ``requests``: bodies, as they come. ``models``, ``chat_completions``: the
routes, a module each. ``urls``: their addresses. docs/openai.md says what is supported, what is refused, and why.
"""
