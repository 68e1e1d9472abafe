"""What a tool may be allowed to touch (nsbh-spec, section 3.2)."""

from enum import StrEnum


class Permission(StrEnum):
    """A tool declares the ones it needs; each must be granted for it to run."""

    NET_HTTP = "NET_HTTP"
    FS_READ = "FS_READ"
    FS_WRITE = "FS_WRITE"
    # Not grantable in version 1: a tool that declares it never runs.
    SHELL = "SHELL"


GRANTABLE = (Permission.NET_HTTP, Permission.FS_READ, Permission.FS_WRITE)
