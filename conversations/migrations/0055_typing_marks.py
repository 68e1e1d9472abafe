from django.db import migrations, models


class Migration(migrations.Migration):
    """Channels show typing marks unless somebody switches that off."""

    dependencies = [("conversations", "0054_saved_searches")]

    operations = [
        migrations.AddField(
            model_name="channel",
            name="typing",
            field=models.BooleanField(
                db_default=True,
                default=True,
                help_text="While a turn goes on, its chat shows that the agent writes, where the platform can.",
                verbose_name="typing marks",
            ),
        ),
    ]
