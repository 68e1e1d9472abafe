from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="is_configured",
            field=models.BooleanField(
                db_default=False, default=False, editable=False, help_text="NANOHOST_API_KEY names it, or did."
            ),
        ),
    ]
