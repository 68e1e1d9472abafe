"""Where tools run: child processes, and the sandbox around them.

``children`` is the gate's side: it runs calls in child processes. ``child`` is the other side: the fork server, and
what it forks. ``modes`` tells which sandbox is in force; ``bubblewrap``, ``landlock`` and ``seccomp`` make one,
``paths`` says what of the machine's files a tool may see in it, and ``probe`` tries it.
"""
