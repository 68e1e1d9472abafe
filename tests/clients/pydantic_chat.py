"""pydantic-ai, with an agent of nanohost as its model, by both of OpenAI's APIs: whole, streamed, with a tool of its
own, and with an answer in a form. Its arguments are what it is to ask: for the tool, and for the form."""

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class Weather(BaseModel):
    city: str
    degrees: int


def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Rain in {city}."


async def main(for_tool: str, for_form: str) -> None:
    told = []
    for model in (OpenAIChatModel("default"), OpenAIResponsesModel("default")):
        agent = Agent(model, instructions="Speak plainly.", tools=[weather])
        first = await agent.run("Hello")
        again = await agent.run("And now?", message_history=first.all_messages())
        async with agent.run_stream("Streamed") as stream:
            streamed = [piece async for piece in stream.stream_text(delta=True)]
        formed = await Agent(model, output_type=NativeOutput(Weather)).run(for_form)
        told.append(
            {
                "first": first.output,
                "again": again.output,
                "streamed": "".join(streamed),
                "tool": (await agent.run(for_tool)).output,
                "form": formed.output.model_dump(),
            }
        )
    print(json.dumps(told))


asyncio.run(main(*sys.argv[1:]))
