"""bert4keras's interface on Keras 3, so that its scripts run with one import changed.

    from bert4keras.models import build_transformer_model
    from roformer_keras.bert4keras.models import build_transformer_model

Modules, names, layer names, inputs and numbers equal bert4keras 0.11.5. Models
are Keras 3 models made of this package's layers. `backend.keras` hands out what scripts
of Keras 2 call, see `keras2`; Keras itself stays as it is.
"""

from roformer_keras.base.keras_backend import starting

with starting():
    # A model may be loaded where its script is not imported, so all classes are known.
    from roformer_keras.bert4keras import layers, optimizers  # noqa: F401

__version__ = "0.11.5"
# The version of bert4keras whose numbers these are.
