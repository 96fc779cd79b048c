"""Layers whose configuration consists of their constructor's arguments."""

import inspect
from typing import Any

import keras


class ConfiguredLayer(keras.layers.Layer):
    """A base of layers that store each argument as an attribute of the same name."""

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for kind in type(self).__mro__[::-1]:
            # A layer with its own configuration may store its arguments differently.
            if not issubclass(kind, ConfiguredLayer) or "get_config" in vars(kind):
                continue
            for name, parameter in inspect.signature(kind).parameters.items():
                if name in config or parameter.kind is parameter.VAR_KEYWORD:
                    continue
                value = getattr(self, name)
                if isinstance(value, keras.initializers.Initializer):
                    value = keras.initializers.serialize(value)
                elif isinstance(value, keras.layers.Layer):
                    value = keras.layers.serialize(value)
                    # The outer layer builds it, under its own path.
                    value.pop("build_config", None)
                config[name] = value
        return config
