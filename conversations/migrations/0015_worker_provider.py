from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0014_worker_sandbox"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="provider",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Who its models are asked of: LLM_PROVIDER.",
                max_length=32,
            ),
        ),
    ]
