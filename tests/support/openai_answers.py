"""What providers answer besides completions, and which of our errors it is."""

import gzip

from agent import errors
from tests.support.openai_server import Reply, as_json, call, completion, failure

KEY = "sk-canary-0123456789"

PROMPT = "the user's secret words"

# What the provider says: its words, the key and the prompt.
WORDS = f"Words of the provider about {KEY} and {PROMPT}"

STATUSES = [
    (failure(401, "invalid_api_key", message=WORDS), errors.LlmAuthError),
    (failure(402, message=WORDS), errors.LlmAuthError),
    (failure(403, message=WORDS), errors.LlmAuthError),
    (failure(429, "insufficient_quota", message=WORDS), errors.LlmAuthError),
    (failure(429, "rate_limit_exceeded", message=WORDS), errors.LlmRateLimited),
    (failure(429, KEY, message=WORDS), errors.LlmRateLimited),
    (failure(404, "model_not_found", message=WORDS), errors.LlmRequestRefused),
    (failure(400, message=WORDS), errors.LlmRequestRefused),
    (failure(418, KEY, message=WORDS), errors.LlmRequestRefused),
    (failure(413, message=WORDS), errors.LlmContextTooLong),
    (failure(400, "context_length_exceeded", message=WORDS), errors.LlmContextTooLong),
    (failure(400, message="This model's maximum context length is 4096 tokens."), errors.LlmContextTooLong),
    (failure(400, "content_filter", message=WORDS), errors.LlmContentFiltered),
    (failure(408, message=WORDS), errors.LlmTimeout),
    (failure(504, message=WORDS), errors.LlmTimeout),
    (failure(409, message=WORDS), errors.LlmUnavailable),
    (failure(500, message=WORDS), errors.LlmUnavailable),
    (failure(503, message=WORDS), errors.LlmUnavailable),
    (Reply(status=502, body=f"<html>{WORDS}</html>".encode()), errors.LlmUnavailable),
    (as_json([WORDS], 500), errors.LlmUnavailable),
    (as_json({"error": WORDS}, 400), errors.LlmRequestRefused),
    (Reply(status=500, body=b"[" * 100_000), errors.LlmUnavailable),
    (Reply(hang_up=True), errors.LlmUnavailable),
]

NO_COMPLETIONS = [
    Reply(body=f"<html>{WORDS}</html>".encode(), headers={"Content-Type": "text/html"}),
    Reply(body=b'{"choices": [', headers={"Content-Type": "application/json"}),
    Reply(body=b"\xff\xfe\xfd", headers={"Content-Type": "application/json"}),
    Reply(body=b"[" * 100_000, headers={"Content-Type": "application/json"}),
    Reply(body=b"", headers={"Content-Type": "application/json"}),
    Reply(body=gzip.compress(b'{"choices": []}'), headers={"Content-Encoding": "gzip"}),
    as_json(None),
    as_json(WORDS),
    as_json([]),
    as_json({}),
    as_json({"choices": []}),
    as_json({"choices": {}}),
    as_json({"choices": [None]}),
    as_json({"choices": [{"message": None}]}),
    as_json({"choices": [{"message": "words"}]}),
    completion(["a", "list"]),
    completion({"an": "object"}),
    completion(7),
    completion(None, tool_calls=7),
    completion(None, tool_calls=["time"]),
    completion(None, tool_calls=[{"id": "1"}]),
    completion(None, tool_calls=[call("time", ["a", "list"])]),
    completion(None, tool_calls=[{"id": "1", "function": {"name": None, "arguments": "{}"}}]),
    completion(None, tool_calls=[call("time", call_id=str(number)) for number in range(1000)]),
]
