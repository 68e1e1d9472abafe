from django.db import migrations

from nanohost.lib.help_texts import SetHelpTexts

TEXTS = {
    "agent": {
        "answer_schema": "A JSON Schema for its answers, which are then JSON. Empty: answers are text.",
        "check_in_deliver_to": "A destination of the agent, by name, that also receives its reports. Empty: none.",
        "check_in_minutes": "Interval between checks, in minutes. Empty: HEARTBEAT_MINUTES.",
        "check_in_owner": "The owner for whom its document HEARTBEAT is checked. Empty: it is not checked.",
        "display_name": "The name that people see. Empty: its name.",
        "documents": "Further instructions, by name.",
        "fallback_models": "Models to use instead, in this order, while the model fails or is at its limit.",
        "name": "Its name for programs: letters, digits, hyphens. It cannot be changed; the display name can.",
        "output_reserve": "Tokens of that window reserved for the answer. Empty: LLM_OUTPUT_RESERVE.",
        "provider": "The provider of its models. Empty: chosen by the model's name, see docs/models.md.",
        "reasoning_effort": "How much its models should reason, if they support it. Empty: the provider's default.",
        "temperature": "Sampling temperature, from 0 to 2. Empty: the provider's default.",
        "tools": "If it may not use every tool: the names of those it may use.",
        "version": "Increased by each change; a turn records the one it ran with.",
    },
    "agentversion": {
        "changed": "Changes from the previous version.",
        "profile": "Its fields in this version.",
    },
    "budget": {
        "agent": "For a budget of an agent.",
        "amount": "The limit: tokens, or millionths of the currency.",
        "api_key": "For a budget of an API key. Summaries are made without a key and are not counted.",
        "every": "How often it starts again, at midnight in TIME_ZONE.",
        "is_on": "Whether it is in force.",
        "name": "What it is for.",
        "owner": "For a budget of an owner: the owner of the conversations.",
        "whose": "The model calls it counts.",
    },
    "budgetperiod": {
        "budget": "The budget.",
        "exceeded_at": "When a call was first refused because of it.",
        "spent": "Used so far: tokens, or millionths of the currency.",
        "warned_at": "When the warning threshold was reached.",
    },
    "deletedagent": {
        "retention": "Days to keep each kind of data; anything not listed is kept forever.",
    },
    "modelprice": {
        "currency": "Always CURRENCY.",
        "valid_from": "The price applies from this time until the next price of the model.",
    },
    "provideroutage": {
        "code": "Its last error code.",
        "ended_at": "End of its latest outage.",
        "provider": "Name of the provider.",
        "since": "Start of its latest outage.",
        "times": "Number of outages.",
        "until": "It is not asked before then. Empty: it is available.",
    },
    "reservation": {
        "lease_until": "The reservation expires then.",
        "period": "The budget's period.",
        "work_id": "The turn or compaction that makes the call; it makes one call at a time.",
    },
}


class Migration(migrations.Migration):
    dependencies = [("agent", "0021_pending_versions")]

    operations = [SetHelpTexts(TEXTS)]
