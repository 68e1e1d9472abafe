"""Heartbeats of agents are called check-ins; their table keeps its name, and so do its indexes."""

import django.db.models.deletion
from django.db import migrations, models

from nanohost.lib.renaming import rename_permissions


class Migration(migrations.Migration):
    dependencies = [
        ("agent", "0006_check_ins"),
        ("scheduler", "0003_job_runs"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]
    operations = [
        migrations.AlterModelTable("Heartbeat", "scheduler_heartbeat"),
        migrations.RenameModel("Heartbeat", "CheckIn"),
        migrations.AlterModelOptions("CheckIn", {"ordering": ["-slot"], "verbose_name": "check-in"}),
        migrations.AlterField(
            "CheckIn",
            "agent",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="check_ins",
                to="agent.agent",
            ),
        ),
        rename_permissions("scheduler", "heartbeat", "check-in"),
    ]
