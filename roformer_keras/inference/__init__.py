"""The compiled functions of a model, and the loops of Keras on them."""
