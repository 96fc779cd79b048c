import keras

__all__ = ["PresetModel"]

class PresetModel(keras.Model):
    pass
