"""An app of tools for the tests."""

# Those that leave marks in files; a test that allows them means them to.
LEAVE_MARKS = frozenset(
    {
        *("look_around", "hang_after_effect", "vanish_after_effect", "meet", "wait_for"),
        *("misbehave", "misbehave_after_effect"),
    }
)


def grants_of(name: str, grants: "list[str] | tuple[str, ...] | None") -> list[str]:
    """What a tool is granted by a test that says so, or that says nothing."""
    return list(grants or (["FS_WRITE"] if name in LEAVE_MARKS else []))
