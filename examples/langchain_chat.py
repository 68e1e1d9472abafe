"""LangChain's ChatOpenAI, with an agent of nanohost as its model: streamed, with a tool of your own.

    pip install langchain-openai
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=nh_… python examples/langchain_chat.py "Hello" "And now?"

The tool runs here. Those of the host run there, and pass its gate.
"""

import sys

from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Rain in {city}."


def answer(model: ChatOpenAI, messages: list[BaseMessage]) -> AIMessageChunk:
    """The model's answer, printed as it is written."""
    whole = AIMessageChunk(content="")
    for piece in model.bind_tools([weather]).stream(messages):
        print(piece.text, end="", flush=True)
        whole += piece
    return whole


def main(questions: list[str]) -> None:
    model, messages = ChatOpenAI(model="default"), []
    for question in questions:
        messages.append(HumanMessage(question))
        messages.append(answer(model, messages))
        while calls := messages[-1].tool_calls:
            messages += [weather.invoke(call) for call in calls]
            messages.append(answer(model, messages))
        print()


main(sys.argv[1:] or ["What time is it?"])
