"""The tool that runs commands: in a box of its own, in the workspace of an agent and an owner."""

from django.conf import settings

from tools.registry import tool


@tool(
    name="exec",
    permissions=["SHELL", "FS_READ", "FS_WRITE"],
    effects="write",
    timeout=settings.EXEC_TIMEOUT_SECONDS,
    untrusted=True,
    requires=["openat2"],
    boxed=True,
)
def run_command(command: str) -> list[str]:
    """Run a command with sh in your workspace, and return what it writes and its exit code if that is not 0.

    It sees your workspace and the system's programs, has a /tmp of its own, and no network unless that was granted.
    What it leaves running is ended with it.

    Args:
        command: The command, such as ls -l notes | head.
    """
    if "\0" in command:
        raise ValueError("The command has a NUL character, which no program can be given.")
    return ["/bin/sh", "-c", command]
