"""Files that people send: what they are, told by their content; what they say; and small pictures of them.

Whatever parses a file of a stranger runs in a child process, with the tools' sandbox and limits and a deadline of its
own: a decoder that hangs, swells or crashes takes nobody with it.
"""
