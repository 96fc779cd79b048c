"""All targets, by name."""

from tools.fuzz import answers, commands, readers, resumed, texts

TARGETS = {
    **readers.TARGETS,
    **texts.TARGETS,
    **resumed.TARGETS,
    **answers.TARGETS,
    **commands.TARGETS,
}
