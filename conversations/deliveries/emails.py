"""How a delivery by e-mail is sent: one message by Django's mail settings.

It tells that something waits and where, and no contents: mailboxes are read by others, and keep what they have.
"""

import smtplib
import time

from django.conf import settings
from django.core.mail import EmailMessage

from conversations.deliveries import outbox
from conversations.deliveries.outbox import Outcome
from conversations.models import Delivery
from nanohost.lib.redaction import redact_head
from nanohost.lib.text import storable

# Characters of a server's answer that are kept.
MAX_KEPT = 200

# By the rule that wants consent.
_WHY = {
    "consent:always": "This tool always needs it.",
    "consent:tainted": "Untrusted text, such as a web page, has entered the conversation.",
}


def send(delivery: Delivery) -> Outcome:
    """Send it once, without the database; never raises for what comes from outside."""
    began = time.monotonic()
    try:
        message_of(delivery).send()
    except smtplib.SMTPResponseException as error:
        said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        return _failed(f"The mail server answered {error.smtp_code}: {said}", began, status=error.smtp_code)
    except smtplib.SMTPRecipientsRefused as error:
        ((code, answer),) = error.recipients.values()
        told = f"The mail server answered {code}: {answer.decode(errors='replace')}"
        # 5xx is an answer for good.
        return _failed(told, began, status=code, is_final=code >= 500)
    except (smtplib.SMTPException, OSError) as error:
        return _failed(f"The mail server cannot be used: {type(error).__name__}: {error}", began)
    return Outcome(took_ms=_since(began))


def message_of(delivery: Delivery) -> EmailMessage:
    """The message: the same at each attempt, with an id by which mail programs know it again."""
    told = delivery.data
    agent, tool = (" ".join(str(told[name]).split()) for name in ("agent", "toolName"))
    # Not reversed: a worker does without the console's pages.
    where = f"{settings.PUBLIC_URL}/admin/tools/approval/{told['approvalId']}/change/"
    if not settings.PUBLIC_URL:
        where = f"open the console, Approvals, and look for {told['approvalId']}"
    body = f"""\
The agent {agent} wants to call the tool {tool} and waits for consent.

Why: {_WHY.get(told["rule"], told["rule"])}
To approve or deny it: {where}
If nobody decides until {told["expiresAt"]}, the call is denied.
"""
    _, _, domain = settings.DEFAULT_FROM_EMAIL.strip("<> ").rpartition("@")
    return EmailMessage(
        subject=redact_head(f"Approval needed: {agent} wants to call {tool}", 200),
        body=body,
        to=[delivery.recipient],
        headers={"Message-ID": f"<{outbox.id_of(delivery)}@{domain}>", "Auto-Submitted": "auto-generated"},
    )


def _failed(told: str, began: float, *, status: int | None = None, is_final: bool = False) -> Outcome:
    error = " ".join(storable(redact_head(told, MAX_KEPT)).split())
    return Outcome(status=status, error=error, is_final=is_final, took_ms=_since(began))


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
