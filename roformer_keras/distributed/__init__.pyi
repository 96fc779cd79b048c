"""The public names, and where each of them is; each verb has a function besides."""

from .training import train as train

def __getattr__(name: str): ...
