from django.db import migrations


def mark_what_was_chosen(apps, schema_editor):
    """The first release did not record which key NANOHOST_API_KEY named. The prefix of a key that a host makes has 8
    hexadecimal digits; one of any other form was chosen elsewhere, which that setting alone can name."""
    keys = apps.get_model("accounts", "ApiKey").objects
    keys.exclude(prefix__regex="^[0-9a-f]{8}$").update(is_configured=True)


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0009_embeds"),
    ]

    operations = [migrations.RunPython(mark_what_was_chosen, migrations.RunPython.noop)]
