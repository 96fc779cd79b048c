"""Tables of texts: files, objects in memory and requests."""
