from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0004_memory"),
    ]

    operations = [
        migrations.AddField(
            model_name="message",
            name="metadata",
            field=models.JSONField(blank=True, help_text="What an import found with it that has no column.", null=True),
        ),
    ]
