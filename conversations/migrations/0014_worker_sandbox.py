from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0013_worker_pools"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="sandbox",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="What keeps its tools where they are.",
                max_length=100,
            ),
        ),
    ]
