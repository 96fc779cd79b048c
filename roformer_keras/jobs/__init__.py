"""Rows that are answered a window at a time into an output that can be resumed."""
