"""Tools that let secrets out: the one they declare, and those they are told."""

import logging
import os
import sys
from typing import Any

from tools.registry import tool


@tool(effects="read", secrets=["LEAKY_SECRET"], timeout=30)
def leak(how: str) -> Any:
    """Let out the secret this tool declares.

    Args:
        how: result, list, raised, argument, printed, at the cut.
    """
    secret = os.environ["LEAKY_SECRET"]
    if how == "result":
        return f"It is {secret}, and the key is sk-proj-canary0123456789."
    if how == "list":
        return [{"secret": secret}]
    if how == "raised":
        raise RuntimeError(f"refused: {secret}")
    if how == "argument":
        raise ValueError(f"postgres://user:{secret}@db/x is no address")
    if how == "printed":
        sys.stdout.write(secret)
        sys.stderr.write(secret)
        logging.getLogger("leak").error("it is %s", secret)
        return "printed"
    # Half of it would be left if it were cut before it is taken out.
    return "x" * (int(how) - len(secret) // 2) + secret + "y" * 200_000


@tool(effects="write", timeout=30)
def sign_in(url: str, headers: dict[str, str]) -> str:
    """Take what is secret as an argument, as a model may have been told it by its user.

    Args:
        url: With a password.
        headers: With a token.
    """
    return f"{len(url)} {len(headers['Authorization'])}"
