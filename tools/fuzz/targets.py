"""All targets, by name."""

from tools.fuzz import commands, readers, resumed, texts

TARGETS = {
    **readers.TARGETS,
    **texts.TARGETS,
    **resumed.TARGETS,
    **commands.TARGETS,
}
