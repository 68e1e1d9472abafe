from django.db import migrations


def make_default_agent(apps, schema_editor):
    """The agent that conversations get when they name none; it may use whatever is enabled."""
    apps.get_model("agent", "Agent").objects.get_or_create(name="default", defaults={"every_tool": True})


class Migration(migrations.Migration):
    dependencies = [("agent", "0001_initial")]
    operations = [migrations.RunPython(make_default_agent, migrations.RunPython.noop)]
