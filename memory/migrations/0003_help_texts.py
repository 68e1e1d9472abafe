from django.db import migrations

from nanohost.lib.help_texts import SetHelpTexts

TEXTS = {
    "historyentry": {
        "first_seq": "The first message it covers.",
        "happened_at": "Start of the period it covers.",
        "happened_until": "End of the period it covers.",
        "last_seq": "The last message it covers.",
        "tainted_by": "Its untrusted source, if any.",
        "words": "The words it can be found by.",
    },
    "memory": {
        "notes": "That day's notes, one per line; only the latest if there are many.",
        "notes_tainted_by": "The untrusted source of some of the notes, if any.",
        "tainted_by": "The untrusted source of some of the content, if any.",
    },
    "memoryversion": {
        "aside_because": "Why it was not applied.",
        "number": "Empty: it was not applied.",
        "settled_at": "When somebody decided whether to apply it.",
        "settled_by": "The person who decided.",
        "tainted_by": "The untrusted source of some of it, if any.",
    },
}


class Migration(migrations.Migration):
    dependencies = [("memory", "0002_taint")]

    operations = [SetHelpTexts(TEXTS)]
