from typing import Any

from django.apps import AppConfig


class ConversationsConfig(AppConfig):
    name = "conversations"

    def ready(self) -> None:
        from agent.spending import notices

        notices.told.connect(_tell_of_a_budget, dispatch_uid="webhooks")


def _tell_of_a_budget(sender: object, *, event: str, facts: dict[str, Any], **_: object) -> None:
    """Webhooks are above the app of budgets, which tells of them by a signal."""
    from conversations.engine import announcements

    announcements.announce(event, facts)
