"""Somebody's answer to a question, by whose intake a host kills itself at a point: as :mod:`tests.faults.compacting`.

``from_channels.take:inside:3`` is the third statement that writes.
"""

import sys
from uuid import UUID

from tests.faults.compacting import main

STATEMENTS = 12
POINTS = [
    *(f"from_channels.take:{moment}:1" for moment in ("before", "after")),
    *(f"from_channels.take:inside:{nth}" for nth in range(1, STATEMENTS + 1)),
]


def event_id(question_id: UUID) -> str:
    """What the platform calls the answer's event."""
    return f"answer {question_id.hex}"


def work(question_id: UUID, point: str) -> None:
    """Take the answer in, or die on the way."""
    from conversations.channels.base import Event
    from conversations.engine.channels import from_channels
    from conversations.question_models import Question
    from tests.faults import kill

    kill.PLACES = {"conversations.engine.channels.from_channels": "from_channels"}
    kill.install(kill.Fault(point))
    chat = Question.objects.select_related("chat__channel__agent").get(pk=question_id).chat
    assert chat
    said = Event(external_id=event_id(question_id), chat_id=chat.chat_id, sender_id="anna", text="Blue")
    from_channels.take(chat.channel, [said], request_id="req_of_one_that_dies")


if __name__ == "__main__":
    main(sys.argv[1], work)
