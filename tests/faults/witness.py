"""What a node of the production shape tells the ledger, and how it dies by itself or goes by a wrong clock.

``FAULT_LEDGER``: tell the ledger in DATA_DIR of each model call that begins and ends. ``FAULT_CLOCK``: so many seconds
ahead of the machine's clock, or behind it. A message of tests.faults.client may ask for the rest: a turn that kills its
worker whenever its model is asked, and a call whose toolbox dies once its answer is stored and nobody was told.

Nothing of the product knows of this: it hooks the scripted model, kombu's channel and Python's clock.
"""

import asyncio
import json
import os
import signal
import time
from typing import Any

from tests.faults.ledger import tell

DATA_DIR = os.environ.get("DATA_DIR", "")


def watch_models() -> None:
    """Tell of each model call, and obey questions that kill."""
    from agent.llm.scripted import ScriptedClient

    complete = ScriptedClient.complete

    async def watched_complete(self: Any, request: Any, on_delta: Any = None) -> Any:
        question = _question(request)
        if question is None:
            return await complete(self, request, on_delta)
        about = {"pid": os.getpid(), "step": question["step"]}
        await asyncio.to_thread(tell, DATA_DIR, "model began", question["question"], **about)
        if (seconds := question.get("killsAfter")) is not None:
            await asyncio.sleep(seconds)
            die(question["question"])
        completion = await complete(self, request, on_delta)
        await asyncio.to_thread(tell, DATA_DIR, "model ended", question["question"], **about)
        return completion

    ScriptedClient.complete = watched_complete


def watch_notifications() -> None:
    """In a toolbox every notification is of a turn whose call has just been stored as ended."""
    from kombu.transport.virtual import Channel

    publish = Channel.basic_publish

    def watched_publish(self: Any, message: Any, *args: Any, **how: Any) -> Any:
        headers = message.get("headers") or {}
        if headers.get("task") == "conversations.tasks.advance_turn":
            _die_if_asked(headers["row"])
        return publish(self, message, *args, **how)

    Channel.basic_publish = watched_publish


def _die_if_asked(turn_id: str) -> None:
    from tools.models import ToolCall

    for arguments in ToolCall.objects.filter(turn_id=turn_id).values_list("arguments", flat=True):
        asked = json.loads(arguments or "{}")
        if asked.get("kill") == "stored" and tell(DATA_DIR, "asked to die", asked["mark"]) == 0:
            die(asked["mark"])


def shift_clock(seconds: float) -> None:
    """Go by a clock that is wrong."""
    from django.utils import timezone

    right_time, right_now = time.time, timezone.now
    time.time = lambda: right_time() + seconds
    timezone.now = lambda: right_now() + timezone.timedelta(seconds=seconds)


def die(name: str) -> None:
    """Tell, and kill -9 this process."""
    tell(DATA_DIR, "died", name, pid=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def _question(request: Any) -> dict[str, Any] | None:
    """The newest user message, if it is one of tests.faults.client's, with how often its model has answered."""
    from agent.prompt import unsent

    roles = [message["role"] for message in request.messages]
    asked = len(roles) - 1 - roles[::-1].index("user")
    try:
        question = json.loads(unsent(request.messages[asked]["content"]))
        return question | {"step": roles[asked:].count("assistant")} if "question" in question else None
    except (ValueError, TypeError):
        return None
