"""bert4keras's interface on Keras 3, so that its scripts run with one import changed.

    from bert4keras.models import build_transformer_model
    from roformer_keras.bert4keras.models import build_transformer_model

Modules, names, layer names, inputs and numbers are those of bert4keras 0.11.5. Models
are Keras 3 models made of this package's layers. Importing this package adds to
`keras.Model` what scripts of Keras 2 call, see `keras2_habits`.
"""

from roformer_keras.bert4keras import keras2_habits

__version__ = "0.11.5"
# The version of bert4keras whose numbers these are.

keras2_habits.install()
