from django.db import migrations, models


class Migration(migrations.Migration):
    """What a worker holds is counted in its turns. The column stays in the database: workers of 0.1.0 write to it."""

    dependencies = [
        ("conversations", "0015_worker_provider"),
    ]

    operations = [
        migrations.AlterField(
            model_name="worker",
            name="turns_held",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField(model_name="worker", name="turns_held")],
        ),
    ]
