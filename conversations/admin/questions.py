"""Questions that agents have asked people, in the admin."""

from django.contrib import admin

from conversations.admin.approval import AgentFilter
from conversations.question_models import Question
from nanohost.lib.admin import ReadOnlyAdmin, link_to, shown


@admin.register(Question)
class QuestionAdmin(ReadOnlyAdmin):
    """What agents have asked people in mid-turn, and what was answered."""

    nothing_yet = "Questions that agents ask people with the tool ask appear here, with the answers."
    list_per_page = 50
    list_display = ["asked_at", "state", "agent", "text", "answer", "answered_by", "expires_at"]
    list_filter = ["state", AgentFilter]
    search_fields_of_editors = ["agent"]
    readonly_fields = ["choices", "its_conversation", "its_turn", "its_chat"]
    fields = ["id", "state", "agent", "text", "choices", "answer", "answered_by", "asked_at", "expires_at"]
    fields += ["answered_at", "its_conversation", "its_turn", "its_chat", "sender_id"]

    @admin.display(description="options", empty_value="–")
    def choices(self, question: Question) -> str | None:
        return shown("\n".join(str(each) for each in question.options)) or None

    @admin.display(description="conversation")
    def its_conversation(self, question: Question) -> str:
        return link_to("conversations_conversation", question.conversation_id, str(question.conversation_id))

    @admin.display(description="turn")
    def its_turn(self, question: Question) -> str:
        return link_to("conversations_turn", question.turn_id, str(question.turn_id))

    @admin.display(description="chat", empty_value="–")
    def its_chat(self, question: Question) -> str | None:
        return link_to("conversations_chat", question.chat.pk, str(question.chat)) if question.chat else None
