"""Images and files in messages."""

from django.db import models
from django.db.models import Q

from conversations.models.conversation import Conversation
from nanohost.lib.ids import new_id


class Attachment(models.Model):
    """A file that came with messages. Its bytes are in the storage, once for each owner; here is what is known of it.

    The owner is a plain number: a row outlives its user until its file is deleted, which no database does by itself.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner_id = models.BigIntegerField(help_text="The owner; others cannot see it.")
    sha256 = models.CharField(max_length=64, help_text="Of its bytes, hexadecimal.")
    path = models.CharField(max_length=200, unique=True, help_text="Where it is in the storage.")
    is_stored = models.BooleanField(
        default=False,
        help_text="Whether the file is there. It is not yet while it is written, and no more once it goes.",
    )
    media_type = models.CharField(max_length=100, help_text="By its content.")
    size = models.PositiveBigIntegerField(help_text="Bytes.")
    width = models.PositiveIntegerField(null=True, blank=True, help_text="Of a picture, pixels.")
    height = models.PositiveIntegerField(null=True, blank=True, help_text="The same.")
    has_thumbnail = models.BooleanField(default=False, help_text="Whether there is a small picture of it.")
    text = models.TextField(blank=True, help_text="Its text, as it is put into prompts.")
    problem = models.CharField(max_length=200, blank=True, help_text="Why the text is incomplete or missing.")
    used_at = models.DateTimeField(help_text="When it was last sent; it is kept for a time after that.")

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["owner_id", "sha256"], condition=Q(is_stored=True), name="one_attachment_a_content_and_owner"
            )
        ]
        indexes = [
            # SQLite matches no partial index, such as the constraint's, against bound parameters.
            models.Index(fields=["owner_id", "sha256"], name="attachments_by_content"),
            models.Index(fields=["used_at"], name="attachments_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.media_type} {self.sha256[:12]}"


class AttachmentUse(models.Model):
    """That a message refers to a file. The file stays while one does."""

    attachment = models.ForeignKey(Attachment, on_delete=models.PROTECT, related_name="uses", help_text="The file.")
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="+")
    # Plain: where messages are in parts, a key of theirs alone is none.
    message_id = models.UUIDField(db_index=True, help_text="The message.")
    name = models.CharField(max_length=100, help_text="Its file name there.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.attachment_id} in {self.message_id}"
