from django.db import migrations

from nanohost.lib.help_texts import SetHelpTexts

TEXTS = {
    "checkin": {
        "conversation_id": "The conversation of the question.",
        "day": "The day, in TIME_ZONE, that its tokens are counted in.",
        "ended_at": "When its outcome was recorded.",
        "owner": "The owner it was done for.",
        "slot": "Start of its interval.",
        "state": "Its outcome.",
    },
    "jobrun": {
        "did": "What it did. Empty: nothing to do.",
        "state": "Its state.",
        "times": "Number of consecutive identical runs in this row.",
    },
    "retentionrun": {
        "began_at": "Start of the latest run.",
        "lease_until": "No other process continues it before then.",
        "position": "Position to continue from. Empty: the run has ended.",
    },
    "schedule": {
        "active": "Whether it is active.",
        "cancelled_at": "When it was cancelled.",
        "conversation_id": "The conversation it runs in. Empty: a new one for each run.",
        "deliver_to": "A destination of the agent, by name, that also receives its answers. Empty: none.",
        "description": "What it is for.",
        "every_seconds": "Repeatedly, at this interval in seconds.",
        "failures": "Consecutive failed runs; at SCHEDULE_MAX_FAILURES it is paused.",
        "kind": "Which of the next three fields applies.",
        "max_runs": "It ends after this many runs.",
        "missed": "What to do about runs that were missed, such as while the host was down.",
        "missed_most": "The most missed runs to catch up on.",
        "paused_because": "Why it is paused.",
        "phase": "The time that intervals are counted from.",
        "prompt": "The message to the agent.",
        "revision": "Increased by each change; a tick that has read an earlier revision does nothing.",
        "runs": "Number of runs, not counting manual ones.",
        "tainted_by": "The source of untrusted text in the conversation in which an agent wrote the prompt, if any.",
        "zone": "Time zone of the expression, such as Europe/Berlin.",
    },
    "schedulerun": {
        "attempts": "Turns started for it.",
        "by_hand": "Whether it was started manually.",
        "conversation_id": "The conversation it ran in.",
        "ended_at": "When its outcome was recorded.",
        "retry_at": "When it is retried.",
        "schedule": "The schedule.",
        "state": "Its state.",
        "turn_id": "Its turn; the latest one if it was retried.",
    },
}


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0009_deliver_to")]

    operations = [SetHelpTexts(TEXTS)]
