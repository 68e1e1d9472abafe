from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0046_replay_runs"),
    ]

    operations = [
        migrations.AddField(
            model_name="turn",
            name="traceparent",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="Where it stands in a trace, as W3C's Trace Context writes it; empty while telemetry is off.",
                max_length=55,
            ),
        ),
    ]
