"""openai-agents in all the ways in which it keeps what was said: answers in a form, chains of responses, conversations,
sessions of its own, and sessions that are compacted. Its arguments are what it is to ask, for the tool and for the
form, and a model with a name like OpenAI's: it has no other ones compact."""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)


class Weather(BaseModel):
    city: str
    degrees: int


@function_tool
def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Rain in {city}."


async def streamed(agent: Agent[Any], asked: Any, **more: Any) -> Any:
    answer = Runner.run_streamed(agent, asked, **more)
    async for _ in answer.stream_events():
        pass
    return answer


async def main(for_tool: str, for_form: str, compacting: str) -> None:
    agent = Agent(name="Guide", model="default", tools=[weather])
    formed = Agent(name="Guide", model="default", output_type=Weather)
    told: dict[str, Any] = {
        "tool": (await Runner.run(agent, for_tool)).final_output,
        "tool in a chain": (await Runner.run(agent, for_tool, auto_previous_response_id=True)).final_output,
        "form": (await Runner.run(formed, for_form)).final_output.model_dump(),
        "streamed form": (await streamed(formed, for_form)).final_output.model_dump(),
    }
    first = await Runner.run(agent, "Hello")
    chained = await Runner.run(agent, "And now?", previous_response_id=first.last_response_id)
    streamed_on = await streamed(agent, "And then?", previous_response_id=chained.last_response_id)
    told["chain"] = [chained.final_output, streamed_on.final_output]
    told["replay"] = (
        await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "Again?"}])
    ).final_output
    async with AsyncOpenAI() as client:
        conversation = await client.conversations.create()
        await Runner.run(agent, "Hello", conversation_id=conversation.id)
        told["conversation"] = (await Runner.run(agent, for_tool, conversation_id=conversation.id)).final_output
        told["said in it"] = len((await client.conversations.items.list(conversation.id)).data)
        await client.conversations.delete(conversation.id)
    own = SQLiteSession("own")
    await Runner.run(agent, for_tool, session=own)
    told["own session"] = (await Runner.run(agent, "And now?", session=own)).final_output
    session = OpenAIConversationsSession()
    await Runner.run(agent, "Hello", session=session)
    popped = await session.pop_item()
    told["left of a session"] = [popped["role"], len(await session.get_items())]
    await session.clear_session()
    for mode in ("input", "previous_response_id"):
        kept = SQLiteSession(mode)
        compacted = OpenAIResponsesCompactionSession(
            session_id=mode,
            underlying_session=kept,
            model=compacting,
            compaction_mode=mode,
            should_trigger_compaction=lambda context: bool(context["compaction_candidate_items"]),
        )
        await Runner.run(agent, "Hello", session=compacted)
        answer = await Runner.run(agent, "And now?", session=compacted)
        told[f"compacted by {mode}"] = [answer.final_output, [each["type"] for each in await kept.get_items()]]
    print(json.dumps(told))


asyncio.run(main(*sys.argv[1:]))
