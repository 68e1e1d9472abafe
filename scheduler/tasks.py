"""What beat rings."""

from celery import shared_task

from conversations.worker import forget_dead_workers


@shared_task
def retention() -> None:
    """Forget what is kept for a while only."""
    forget_dead_workers()
