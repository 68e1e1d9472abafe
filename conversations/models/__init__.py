"""What happened: conversations, their messages, their turns, what goes out of them, and the workers that run them.

A module for each subject; every name is imported from here.
"""

# Rows of their own modules.
from conversations import feedback_models, question_models, saved_search_models
from conversations.models.attachment import Attachment, AttachmentUse
from conversations.models.compaction import (
    OPEN_COMPACTION,
    Compaction,
    CompactionKind,
    CompactionQuerySet,
    CompactionStatus,
)
from conversations.models.conversation import Conversation, ConversationQuerySet
from conversations.models.deferred import OPEN_DEFERRED, DeferredMessage, DeferredState
from conversations.models.delivery import OPEN_DELIVERY, Delivery, DeliveryQuerySet, DeliveryStatus, OutgoingFile
from conversations.models.intake import IntakePause, IntakePauseQuerySet
from conversations.models.limits import MAX_ADDRESS, MAX_ANSWERS, MAX_REASON, MAX_SEQ
from conversations.models.message import Message, MessageQuerySet, TaintedText, as_chat, calls_in
from conversations.models.response import StoredResponse
from conversations.models.share import Share
from conversations.models.turn import CallerRound, Turn, TurnQuerySet
from conversations.models.webhook import MAX_URL, WebhookEndpoint, validate_kinds, validate_url
from conversations.models.worker import SCRIPTED, Worker, WorkerQuerySet
from conversations.replay_models import Replay, ReplayCase, ReplayRun, ReplaySet

__all__ = [
    "MAX_ADDRESS",
    "MAX_ANSWERS",
    "MAX_REASON",
    "MAX_SEQ",
    "MAX_URL",
    "OPEN_COMPACTION",
    "OPEN_DEFERRED",
    "OPEN_DELIVERY",
    "SCRIPTED",
    "Attachment",
    "AttachmentUse",
    "CallerRound",
    "Compaction",
    "CompactionKind",
    "CompactionQuerySet",
    "CompactionStatus",
    "Conversation",
    "ConversationQuerySet",
    "DeferredMessage",
    "DeferredState",
    "Delivery",
    "DeliveryQuerySet",
    "DeliveryStatus",
    "IntakePause",
    "IntakePauseQuerySet",
    "Message",
    "MessageQuerySet",
    "OutgoingFile",
    "Replay",
    "ReplayCase",
    "ReplayRun",
    "ReplaySet",
    "Share",
    "StoredResponse",
    "TaintedText",
    "Turn",
    "TurnQuerySet",
    "WebhookEndpoint",
    "Worker",
    "WorkerQuerySet",
    "as_chat",
    "calls_in",
    "feedback_models",
    "question_models",
    "saved_search_models",
    "validate_kinds",
    "validate_url",
]
