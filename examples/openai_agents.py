"""openai-agents, with an agent of nanohost as its model: a conversation that stays, streamed, with a tool of your own.

    pip install openai-agents
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=nh_… python examples/openai_agents.py "Hello" "And now?"

The tool runs here. Those of the host run there, and pass its gate.
"""

import asyncio
import sys

from agents import Agent, OpenAIConversationsSession, Runner, function_tool, set_tracing_disabled
from openai.types.responses import ResponseTextDeltaEvent

set_tracing_disabled(True)  # traces would be sent to OpenAI


@function_tool
def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Rain in {city}."


async def main(questions: list[str]) -> None:
    agent = Agent(name="Guide", model="default", instructions="Speak plainly.", tools=[weather])
    session = OpenAIConversationsSession()  # it is a conversation of the host's
    for question in questions:
        answer = Runner.run_streamed(agent, question, session=session)
        async for event in answer.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                print(event.data.delta, end="", flush=True)
        print()
    print(await session._get_session_id())


asyncio.run(main(sys.argv[1:] or ["What time is it?"]))
