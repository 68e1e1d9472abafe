"""Leases have one description, and ``notified_at`` its name; no table changes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tools", "0005_rows")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    "toolcall",
                    "lease_until",
                    models.DateTimeField(blank=True, help_text="Until then nobody else may claim it.", null=True),
                ),
                migrations.AlterField(
                    "toolcall",
                    "worker",
                    models.CharField(blank=True, help_text="Who claimed it last.", max_length=128),
                ),
                migrations.RenameField("toolcall", "rung_at", "notified_at"),
                migrations.AlterField(
                    "toolcall",
                    "notified_at",
                    models.DateTimeField(
                        blank=True, db_column="rung_at", help_text="When workers were last notified of it.", null=True
                    ),
                ),
                migrations.RemoveIndex("toolcall", "calls_by_status"),
                migrations.AddIndex("toolcall", models.Index(fields=["status", "notified_at"], name="calls_by_status")),
            ]
        )
    ]
