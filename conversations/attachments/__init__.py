"""Images and files in messages.

``parts`` reads what a client sends, ``intake`` has it fetched, read and stored, ``store`` keeps and deletes the bytes,
``prompts`` says how models are told of them, ``serving`` hands them out again. A message has references to its files;
their bytes are in the storage, never in a row.
"""
