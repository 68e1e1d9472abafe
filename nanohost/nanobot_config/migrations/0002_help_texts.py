from django.db import migrations

from nanohost.lib.help_texts import SetHelpTexts

TEXTS = {
    "configpart": {
        "enabled": "Whether it is in use here. Imported parts are off at first.",
        "kind": "What it configures.",
        "name": "Name of the channel, server, provider or agent.",
        "secrets": "The files that have its secrets: path, file, member.",
        "settings": "Its settings in the file, without secrets, in camelCase.",
        "was_enabled": "Whether it was enabled in the imported file.",
    },
}


class Migration(migrations.Migration):
    dependencies = [("nanobot_config", "0001_initial")]

    operations = [SetHelpTexts(TEXTS)]
