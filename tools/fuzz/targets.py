"""All targets, by name."""

from tools.fuzz import commands, readers, texts

TARGETS = {**readers.TARGETS, **texts.TARGETS, **commands.TARGETS}
