from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0029_answer_schemas"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("status", "failed")), fields=["-created_at"], name="deliveries_failed"
            ),
        ),
    ]
