"""nanobot's config.json, read and written: what it says becomes agents' fields, files of keys, and stored parts."""
