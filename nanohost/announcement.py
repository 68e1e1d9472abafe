"""What a user is told when a host has started."""

import re
from collections.abc import Sequence

from nanohost.lib import env

_PASSWORD_LINE = "Admin's name: admin, password (shown this once): "  # noqa: S105 -- what stands before one
_KEY_LINE = "API key (shown this once): "


def made_now(password: str | None, key: str | None) -> list[str]:
    """The lines that show what was made now; :func:`read_made_now` reads them."""
    return [line + made for line, made in ((_PASSWORD_LINE, password), (_KEY_LINE, key)) if made]


def read_made_now(printed: str) -> tuple[str | None, str | None]:
    """Password and key, as :func:`made_now` wrote them into what a process printed."""
    found = [re.search(rf"^{re.escape(line)}(\S+)$", printed, re.MULTILINE) for line in (_PASSWORD_LINE, _KEY_LINE)]
    password, key = (match[1] if match else None for match in found)
    return password, key


def announcement(
    address: str,
    *,
    password: str | None,
    key: str | None,
    sandbox: str,
    told: Sequence[str] = (),
    manage: str = ".venv/bin/python manage.py",
) -> str:
    """What a user is told at the start; ``password`` and ``key`` if they were made now, and are shown this once;
    ``sandbox``: which sandbox tools run in, in a sentence; ``told``: sentences of what else has happened."""
    if password:
        how_to_log_in = f"{password}  (shown this once)"
    elif env.secret("NANOHOST_ADMIN_PASSWORD"):
        how_to_log_in = "as NANOHOST_ADMIN_PASSWORD says"
    else:
        how_to_log_in = f"as before; to set another: {manage} changepassword admin"
    if key:
        how_to_call = f"{key}  (shown this once)"
    elif env.secret("NANOHOST_API_KEY"):
        how_to_call = "as NANOHOST_API_KEY says"
    else:
        how_to_call = f"as before; to make another: {manage} keys create --owner admin"
    return f"""
  Admin     {address}/admin/
  API docs  {address}/api/docs
  Health    {address}/health/ready

  Name      admin
  Password  {how_to_log_in}
  API key   {how_to_call}
  Sandbox   {sandbox}
{"".join(f"  {sentence}{chr(10)}" for sentence in told)}
  Try it{"" if key else ", with your key in NANOHOST_API_KEY"}:
  {curl_line(address, key or "$NANOHOST_API_KEY")}

  Ctrl-C stops it.
"""


def curl_line(address: str, key: str) -> str:
    """A line for a shell: starts a conversation, asks for the time in it, and prints the answer."""
    conversations = f"{address}/api/v1/conversations"
    curl = f'curl -sS -H "Authorization: Bearer {key}"'
    find_id = """sed 's/.*"conversationId":"\\([^"]*\\).*/\\1/'"""
    body = """-H 'Content-Type: application/json' -d '{"message": "What time is it?"}' -w '\\n'"""
    return f"{curl} {conversations}/$({curl} -X POST {conversations} | {find_id})/chat {body}"
