"""Tools that are files of a workspace, as nanobot has them: one class a file, in the folder ``tools/``."""
