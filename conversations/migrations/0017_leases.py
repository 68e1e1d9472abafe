"""Leases have one description, and ``notified_at`` its name; no table changes."""

from django.db import migrations, models


def lease_of(model: str) -> list[migrations.operations.base.Operation]:
    return [
        migrations.AlterField(
            model,
            "lease_until",
            models.DateTimeField(blank=True, help_text="Until then nobody else may claim it.", null=True),
        ),
        migrations.RenameField(model, "rung_at", "notified_at"),
        migrations.AlterField(
            model,
            "notified_at",
            models.DateTimeField(
                blank=True, db_column="rung_at", help_text="When workers were last notified of it.", null=True
            ),
        ),
    ]


def index_of(model: str, name: str) -> list[migrations.operations.base.Operation]:
    return [
        migrations.RemoveIndex(model, name),
        migrations.AddIndex(model, models.Index(fields=["status", "notified_at"], name=name)),
    ]


class Migration(migrations.Migration):
    dependencies = [("conversations", "0016_turns_held")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                *lease_of("turn"),
                *index_of("turn", "turns_by_status"),
                *lease_of("compaction"),
                *index_of("compaction", "compactions_by_status"),
            ]
        )
    ]
