"""What the doorbell rings. Each task looks at one row and makes one domain call."""

from uuid import UUID

from celery import shared_task

from conversations import worker


@shared_task
def advance_turn(turn_id: str) -> None:
    """Look at a turn: hand it to this process's loop, which claims it if it is to be had."""
    worker.runtime().take_turn(UUID(turn_id))


@shared_task
def run_tool_call(call_id: str) -> None:
    """Look at a tool call: run it if it is to be had."""
    worker.runtime().take_call(UUID(call_id))
