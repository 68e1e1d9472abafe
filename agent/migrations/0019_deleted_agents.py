import json

from django.db import migrations, models


def remember_deleted_agents(apps, schema_editor):
    """Agents that were deleted before: how long they kept what, as the audit log tells."""
    agents, deleted = apps.get_model("agent", "Agent"), apps.get_model("agent", "DeletedAgent")
    living = set(agents.objects.values_list("name", flat=True))
    entries = apps.get_model("accounts", "AuditEntry").objects.filter(action="agent.deleted").order_by("pk")
    for entry in entries.iterator():
        retention = json.loads(entry.before or "{}").get("retention")
        if entry.object_name not in living and isinstance(retention, dict):
            kept = {"retention": retention, "deleted_at": entry.at}
            deleted.objects.update_or_create(name=entry.object_name, defaults=kept)


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_audit_and_limits"), ("agent", "0018_check_in_deliver_to")]

    operations = [
        migrations.CreateModel(
            name="DeletedAgent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=64, unique=True)),
                (
                    "retention",
                    models.JSONField(help_text="How many days it kept what; what is not named is kept for ever."),
                ),
                (
                    "deleted_at",
                    models.DateTimeField(
                        help_text="When it was deleted, the last time if there were several of the name."
                    ),
                ),
            ],
            options={"ordering": ["name"]},
        ),
        migrations.RunPython(remember_deleted_agents, migrations.RunPython.noop),
    ]
