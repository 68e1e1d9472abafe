from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0011_pins_and_undone_summaries"),
    ]

    operations = [
        migrations.AddField(
            model_name="conversation",
            name="state_times",
            field=models.JSONField(
                blank=True,
                db_default=models.Value({}, models.JSONField()),
                default=dict,
                help_text="When each key of the state was kept; of one that an earlier version kept, nothing is known.",
            ),
        ),
        migrations.AddField(
            model_name="turn",
            name="cancelled_by",
            field=models.UUIDField(
                blank=True, help_text="The turn that it was cancelled for: a /stop, or one that interrupts.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="latermessage",
            name="state",
            field=models.CharField(
                choices=[
                    ("waiting", "Waiting"),
                    ("fired", "Fired"),
                    ("done", "Done"),
                    ("failed", "Failed"),
                    ("dropped", "Cancelled"),
                ],
                default="waiting",
                help_text="What has become of it.",
                max_length=7,
            ),
        ),
    ]
