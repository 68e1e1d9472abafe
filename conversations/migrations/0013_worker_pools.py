from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("conversations", "0012_api")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="pool_used",
            field=models.PositiveIntegerField(
                help_text="Connections of its database pool that were in use. Empty: it has no pool, as on SQLite.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="pool_most",
            field=models.PositiveIntegerField(help_text="How many connections its pool may open.", null=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="pool_waiting",
            field=models.PositiveIntegerField(help_text="Threads that waited for one.", null=True),
        ),
    ]
