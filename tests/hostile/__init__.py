"""Hostile inputs in tables: for each the command, the exit code and the message.

A row is `(line, files, code, message)`. The words of the line are arguments of
`roformer-keras`; words of `cli_errors.PATHS`, such as SMALL, are checkpoints. `files`
is a dict of name to content (str, bytes, or a function that makes the file at a
path), or a function that writes into the folder where the line runs. Settings, flags,
tables of texts and labels are tested at the functions that read them.
"""
