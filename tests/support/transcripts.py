"""Messages in the chat format, and whatever transcripts of them."""

from typing import Any

from hypothesis import strategies as st


def user(content: str = "Hello") -> dict[str, Any]:
    return {"role": "user", "content": content}


def says(content: str = "Hi.") -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def calls(*ids: str, name: str = "time", arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return says("") | {"tool_calls": [{"id": each, "type": "function", "function": function} for each in ids]}


def result(call_id: str, content: str = "noon") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


few = st.sampled_from(["a", "b", "c"])

texts = st.sampled_from(["", " ", "words"]) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))

functions = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["time", "my tool!", "", "x" * 99]) | texts,
        "arguments": st.sampled_from(["{}", '{"a": 1}', "", "no JSON", "[]", "null"]),
    }
)

a_call = st.fixed_dictionaries({"id": few, "type": st.just("function"), "function": functions})

users = st.builds(user, texts)

assistants = st.builds(says, texts)

callers = st.builds(lambda text, made: says(text) | {"tool_calls": made}, texts, st.lists(a_call, max_size=4))

results = st.builds(result, few, texts)

# Results and calls often, so that groups are broken in every way.
transcripts = st.lists(st.one_of(users, assistants, callers, results, results), max_size=30)

windows = st.integers(1, 12)
