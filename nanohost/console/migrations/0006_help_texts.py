from django.db import migrations

from nanohost.lib.help_texts import SetHelpTexts

TEXTS = {
    "dismissal": {
        "count": "The counter's value when the notice was closed.",
        "name": "The notice that was closed.",
    },
    "hour": {
        "hour": "Start of the hour, in UTC.",
        "settled": "The hour is over, and so are all turns that began in it.",
    },
    "total": {
        "calls": "Totals in the form that hours have.",
        "counted_at": "When the totals were last updated.",
        "since": "The first hour that is counted.",
        "turns": "Totals in the form that hours have.",
    },
    "use": {
        "cached_tokens": "Prompt tokens that providers had cached.",
        "hour": "Start of the hour, in UTC, in which the turn was requested.",
        "unpriced_calls": "Model calls whose cost is not known.",
    },
}


class Migration(migrations.Migration):
    dependencies = [("console", "0005_checked_calls")]

    operations = [SetHelpTexts(TEXTS)]
