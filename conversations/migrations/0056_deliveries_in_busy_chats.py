from django.db import migrations, models


class Migration(migrations.Migration):
    """Whether a message to a chat is its first that is open is found without reading what the chat was sent before."""

    dependencies = [
        ("conversations", "0055_typing_marks"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["chat", "status", "number"], name="deliveries_of_a_chat_open"),
        ),
        migrations.RemoveIndex(model_name="delivery", name="deliveries_of_a_chat"),
    ]
