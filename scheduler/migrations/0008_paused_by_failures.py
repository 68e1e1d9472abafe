from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agent", "0014_written_prompts"),
        ("scheduler", "0007_api_key"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("active", False), ("cancelled_at", None), ("failures__gt", 0)),
                fields=["failures"],
                name="schedules_paused",
            ),
        ),
    ]
