"""Running turns: what is taken in, who holds it, what it steps through, and who ends it."""
