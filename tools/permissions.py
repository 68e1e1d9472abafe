"""What a tool may be allowed to touch (nsbh-spec, section 3.2)."""

from enum import StrEnum


class Permission(StrEnum):
    """A tool declares the ones it needs; each must be granted for it to run."""

    NET_HTTP = "NET_HTTP"
    FS_READ = "FS_READ"
    FS_WRITE = "FS_WRITE"
    # Grantable only where the host's settings say so: SHELL_GRANTABLE.
    SHELL = "SHELL"


GRANTABLE = (Permission.NET_HTTP, Permission.FS_READ, Permission.FS_WRITE)


def grantable() -> tuple[Permission, ...]:
    """Those that may be granted on this host at all."""
    from django.conf import settings  # processes of tools import this module without Django

    return (*GRANTABLE, Permission.SHELL) if settings.SHELL_GRANTABLE else GRANTABLE
