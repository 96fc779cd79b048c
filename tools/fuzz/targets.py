"""All targets, by name."""

from tools.fuzz import answers, commands, readers, texts

TARGETS = {
    **readers.TARGETS,
    **texts.TARGETS,
    **answers.TARGETS,
    **commands.TARGETS,
}
