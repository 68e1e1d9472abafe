from django.db import migrations

from nanohost.lib.help_texts import SetHelpTexts

TEXTS = {
    "apikey": {
        "is_configured": "It was set by NANOHOST_API_KEY.",
        "is_of_browser": "It belongs to its owner's signed-in browser session. Nobody can see the key itself.",
        "model_names": "The models it may ask for, besides an agent's own. Empty: those in LLM_MODELS.",
        "name": "What it is for.",
        "owner": "The owner of the conversations the key gives access to.",
        "requests_per_minute": "Requests it may make in any 60 seconds. Empty: no limit.",
        "turns_at_once": "Turns it may have open at the same time. Empty: no limit.",
    },
    "auditentry": {
        "actor": "Who did it: a user, an API key, an agent, a command or the host.",
        "after": "The values after the change, or the decision, as JSON.",
        "before": "The values before the change, as JSON.",
        "reason": "The reason given by whoever did it.",
    },
    "legalhold": {
        "kind": "What the hold applies to.",
        "released_at": "When the hold ended. Empty: it is in force.",
    },
}


class Migration(migrations.Migration):
    dependencies = [("accounts", "0010_chosen_keys")]

    operations = [SetHelpTexts(TEXTS)]
