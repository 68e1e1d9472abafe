"""What can go wrong with conversations and turns."""

from collections.abc import Iterable
from typing import ClassVar

from nanohost.lib.errors import Problem


class FenceLost(Exception):
    """Another worker took the turn over, or it was ended: what we were about to write no longer counts."""


class NotClaimed(Exception):
    """The turn is not claimable now."""


class Overtaken(Exception):
    """The conversation was moved on while a summary of it was made."""


class CannotReplay(Exception):
    """A turn cannot be asked again as it was asked: something of it is not kept. Its text says what."""

    code = "cannot_replay"


class RunBudgetSpent(CannotReplay):
    """The run that a replay is part of has used the tokens that it may use."""

    code = "run_budget"


class FolderInUse(Exception):
    """There is something already where an export is to be written."""


class IntakePaused(Problem):
    """No new turns are taken in, as while a new version is deployed."""

    code, status, title = "intake_paused", 503, "New turns are not accepted just now; try again after Retry-After."


class ModelNotAllowed(Problem):
    """The request names a model that is neither its agent's own nor one of LLM_MODELS."""

    code, status = "model_not_allowed", 400
    title = "Only the agent's own model and those that LLM_MODELS lists may be named."


class TooManyTurns(Problem):
    """As many turns of the key are open as may be."""

    code, status, title = "too_many_turns", 429, "Too many turns of this API key are open; try again after Retry-After."


class UnknownDestination(Problem):
    """An agent would write to somewhere that it was not given."""

    code, status, title = "unknown_destination", 400, "The agent has no destination of that name."

    @classmethod
    def named(cls, name: str, known: Iterable[str]) -> "UnknownDestination":
        """Of this name, where there are these."""
        there_are = ", ".join(sorted(known)) or "none"
        return cls(f"There is no destination named {name[:64]!r} for this agent; there are: {there_are}.")


class UnknownAgent(Problem):
    """The request names an agent there is none of."""

    code, status, title = "unknown_agent", 400, "There is no agent with that name."


class KeyTaken(Problem):
    """A key is of a conversation with another agent than the one the request names."""

    code, status, title = "key_taken", 409, "There is a conversation with this key and another agent."


class ConversationBusy(Problem):
    """A turn of the conversation is open, and the request would rather not wait behind it."""

    code, status, title = "conversation_busy", 409, "A turn of this conversation has not ended, and onBusy is reject."


class TurnNotEnded(Problem):
    """Somebody has an opinion of an answer that there is not."""

    code, status, title = "turn_not_ended", 409, "The turn has not ended: there is no answer to give feedback on yet."


class TurnUnderWay(Problem):
    """A transcript is to be changed in whose midst a turn is."""

    code, status, title = (
        "turn_under_way",
        409,
        "A turn of this conversation is under way; wait for its end.",
    )


class Draining(Problem):
    """The process that keeps the client is about to stop; its turn goes on."""

    code, status, title = "draining", 503, "This web node is stopping; the turn goes on. Send the same request again."


class OutputMissing(Problem):
    """A turn is to go on without what one of its caller's tools gave."""

    code, status, title = "output_missing", 400, "Each function call of the last answer needs its output."


class UnknownCall(Problem):
    """What a tool gave is of no call that a turn waits for."""

    code, status, title = "unknown_call", 400, "No turn waits for the output of this call."


class NotWaiting(Problem):
    """What the caller's tools gave comes too late, or was given before, and differs."""

    code, status, title = "not_waiting", 409, "The turn no longer waits for these outputs."


class QuestionClosed(Problem):
    """A question is answered that was answered before, or that nobody waits for any more."""

    code, status, title = "question_closed", 409, "This question was already answered, or no longer needs an answer."


class NotAsked(Problem):
    """Somebody would answer a question that is put to somebody else."""

    code, status, title = "not_asked", 403, "This question was put to somebody else, who can answer it in a chat."


class NotFailed(Problem):
    """A turn is to be asked again that has not failed."""

    code, status, title = "not_failed", 409, "Only a turn that has failed can be asked again."


class SummaryStays(Problem):
    """A summary is to be undone that cannot be."""

    code, status, title = "summary_stays", 409, "This summary cannot be undone; the detail says why."


class CannotBePinned(Problem):
    """A message is to be pinned that prompts do not have."""

    code, status, title = "cannot_be_pinned", 409, "Only messages of a user or the assistant can be pinned."


class TooManyPins(Problem):
    """More is to be pinned than every prompt has room for."""

    code, status, title = (
        "too_many_pins",
        409,
        "More is pinned than a prompt has room for; the detail says how much.",
    )


class IdempotencyConflict(Problem):
    """An idempotency key comes back with another request."""

    code, status, title = "idempotency_conflict", 409, "This Idempotency-Key was used for another request."


# Of a turn that people of the house have failed, for a reason that its client is told.
BY_OPERATOR = "turn_failed_by_operator"
# Of a turn that was open when the backup was made that the database was restored from. What it was for is not tried
# again by itself: it may have been done.
RESTORED = "turn_restored"


# Of these, what is told in detail is for whoever has asked; of others, for people of the house.
TOLD = frozenset({BY_OPERATOR, "answer_not_valid", "budget_exceeded", "model_not_priced"})

# What a turn that is tried again has met, in plain words: these may pass.
PASSING = {
    "llm_rate_limited": "The model's provider asks to wait.",
    "llm_timeout": "The model did not answer within LLM_TIMEOUT_SECONDS.",
    "llm_unavailable": "The model's provider cannot be reached, or fails.",
    "llm_bad_response": "The model's provider sent an answer that is not a completion.",
    "attachment_unavailable": "A file of the conversation is not available from the storage.",
    "turn_error": "The server failed; the failure is logged.",
}


class TurnProblem(Problem):
    """A turn that ended without an answer, as the chat request that waits for it is told."""

    codes: ClassVar[dict[str, tuple[int, str]]] = {
        "turn_cancelled": (409, "The turn was cancelled."),
        "turn_timeout": (504, "The turn took longer than TURN_TIMEOUT_SECONDS."),
        "turn_crashed": (500, "The workers that ran the turn died, TURN_MAX_ATTEMPTS times."),
        "turn_error": (500, "The turn failed by a fault of the server; the failure is logged."),
        BY_OPERATOR: (500, "An operator of this host ended the turn; the detail says why."),
        RESTORED: (500, "The database was restored from a backup of when this turn was open; it may have acted since."),
        "budget_exceeded": (402, "A budget is too low for this; the detail says whose, and when it starts over."),
        "model_not_priced": (
            422,
            "A budget in money applies, and the model has no price: an admin of this host has to enter one.",
        ),
        "llm_auth": (502, "The model's provider refused the server's key, or its quota is used up."),
        "llm_rate_limited": (503, "The model's provider asks to wait; retries were used up."),
        "llm_timeout": (504, "The model did not answer within LLM_TIMEOUT_SECONDS; retries were used up."),
        "llm_context_too_long": (422, "The conversation does not fit the model's context."),
        "model_cannot_see": (422, "The model does not accept images: use one that does, or send text."),
        "attachment_unavailable": (
            502,
            "A file of the conversation is not available from the storage; retries were used up.",
        ),
        "llm_content_filter": (422, "The provider's content filter refused the prompt or the answer."),
        "llm_unavailable": (502, "The model's provider cannot be reached, or fails; retries were used up."),
        "llm_bad_response": (502, "The model's provider sent an answer that is not a completion."),
        "answer_not_valid": (
            502,
            "The model's answer did not fit the requested format, twice; the detail says what was wrong.",
        ),
        "no_provider": (502, "No provider is set up for the requested model."),
        "llm_request_refused": (502, "The model's provider refused the request, for example for an unknown model."),
    }

    def __init__(self, code: str, told: str = "", **members: object) -> None:
        self.code = code
        self.status, self.title = self.codes.get(code, self.codes["turn_error"])
        super().__init__(told, headers=None, **members)


class BudgetUsedUp(TurnProblem):
    """Of a budget that applies to the request nothing is left: there is no turn of it."""

    def __init__(self, told: str) -> None:
        super().__init__("budget_exceeded", told)
