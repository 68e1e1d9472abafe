"""The kinds of events, each with its data as readers of a stream see it (docs/api.md)."""

from enum import StrEnum


class EventKind(StrEnum):
    """What can happen in a turn. Readers' streams make the first and the four last; the others are published."""

    # {turnId, conversationId}
    TURN_QUEUED = "turn.queued"
    # {}
    TURN_STARTED = "turn.started"
    # {message, offset, text}: what the model thinks aloud.
    REASONING_DELTA = "reasoning.delta"
    # {message, offset, text}: a piece of the turn's message of that number, and where in it it stands.
    MESSAGE_DELTA = "message.delta"
    # {message}: its pieces so far are void: a new attempt begins it again.
    MESSAGE_RESET = "message.reset"
    # {callId, toolName, toolCallId, arguments}
    TOOL_STARTED = "tool.started"
    # {callId, toolName, toolCallId, offset, text}: a piece of what a program writes, and where in it it begins.
    TOOL_OUTPUT = "tool.output"
    # {callId, toolName, toolCallId, status, result}; of one that never started, its arguments as well
    TOOL_FINISHED = "tool.finished"
    # {callId, toolName, toolCallId, destination, text}: what the agent says in mid-turn, with its tool `message`.
    MESSAGE_SAID = "message.said"
    # {approvalId, callId, toolName, rule, arguments, expiresAt}: a call waits until somebody has approved it.
    APPROVAL_REQUESTED = "approval.requested"
    # {approvalId, callId, toolName, state, reason}
    APPROVAL_DECIDED = "approval.decided"
    # {questionId, callId, toolName, text, options, expiresAt, isInChat}: somebody is asked, and the turn waits.
    QUESTION_ASKED = "question.asked"
    # {questionId, callId, toolName, state, answer}
    QUESTION_ANSWERED = "question.answered"
    # What the chat request is answered with; the last event, as the two below are.
    TURN_COMPLETED = "turn.completed"
    TURN_FAILED = "turn.failed"
    TURN_CANCELLED = "turn.cancelled"
    # {}: all that was told of the turn is void: it is told again from its rows.
    TURN_RESET = "turn.reset"


# Those that carry a piece of what a model says.
DELTAS = (EventKind.MESSAGE_DELTA, EventKind.REASONING_DELTA)
