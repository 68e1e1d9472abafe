"""OpenAI's API, under ``/v1``: a model is an agent, a completion is a turn, or a part of one.

The routes, a module each: ``models``, ``chat_completions``. What they read: ``messages``, ``parts`` (of a message),
``parameters``, ``caller_tools``, and ``values`` for all of them. What they answer with: ``turn_parts``, ``chunks`` (of
a stream). ``errors``: what this API alone refuses. ``shapes`` and ``schema``: the OpenAPI document. docs/openai.md says
what is supported, what is refused, and why.
"""
