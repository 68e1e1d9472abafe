import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agent", "0004_heartbeat")]

    operations = [
        migrations.AddField(
            model_name="agent",
            name="heartbeat_minutes",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How often it is looked at, in minutes. Empty: HEARTBEAT_MINUTES.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(1440),
                ],
            ),
        ),
    ]
