"""A dense layer whose LoRA factors can be added, saved and merged."""

import keras
from keras import ops

from roformer_keras.base import quirks

_FACTORS = ("lora_kernel_a", "lora_kernel_b")


@keras.saving.register_keras_serializable("roformer_keras")
class Projection(keras.layers.Dense):
    """Keras's dense layer, which saves its LoRA factors.

    Keras merges the factors into the saved kernel, and loads the factors as zeros,
    whose gradient is zero as well. This layer saves the factors next to that kernel:
    readers without LoRA get the fine-tuned kernel; training resumes with the factors.

    Arguments, call arguments and returns: as in `keras.layers.Dense`.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """

    def call(self, inputs, training=None):
        if keras.backend.backend() != "tensorflow" or len(inputs.shape) < 3:
            return super().call(inputs, training=training)
        # TensorFlow fuses product, bias and activation if nothing comes between them;
        # Keras would reshape a product of more than two axes.
        *outer, dim = ops.shape(inputs)
        outputs = super().call(ops.reshape(inputs, (-1, dim)), training=training)
        return ops.reshape(outputs, (*outer, self.units))

    def merge_lora(self):
        """Adds the factors' product to the kernel, and drops the factors."""
        self._stored_kernel().assign(self._merged(1.0))
        for name in _FACTORS:
            quirks.drop_variable(self, name)
        self.lora_enabled = False
        self.lora_rank = self.lora_alpha = None

    def _stored_kernel(self):
        """The kernel's variable, without the factors and the cast of `kernel`."""
        return next(weight for weight in self.weights if weight.name == "kernel")

    def _merged(self, sign):
        """The kernel plus or minus the product, in the type of the stored kernel."""
        product = ops.matmul(self.lora_kernel_a, self.lora_kernel_b)
        scale = sign * self.lora_alpha / self.lora_rank
        kernel = self._stored_kernel()
        return ops.cast(kernel + scale * product, kernel.dtype)

    def save_own_variables(self, store):
        variables = {}
        is_lora, self.lora_enabled = self.lora_enabled, False
        try:
            # Keras would merge the factors in lower precision than `_merged`.
            super().save_own_variables(variables)
        finally:
            self.lora_enabled = is_lora
        if is_lora:
            variables["0"] = self._merged(1.0)
            variables.update({name: getattr(self, name) for name in _FACTORS})
        for name, value in variables.items():
            store[name] = value

    def load_own_variables(self, store):
        variables = {name: store[name] for name in store.keys()}  # noqa: SIM118
        factors = {name: variables.pop(name) for name in _FACTORS if name in variables}
        if not self.lora_enabled:
            super().load_own_variables(variables)
            return
        if not factors:
            # The file has no factors: use those of a new layer.
            factors = {
                "lora_kernel_a": ops.convert_to_numpy(self.lora_kernel_a),
                "lora_kernel_b": ops.zeros(self.lora_kernel_b.shape),
            }
        super().load_own_variables(variables)
        for name, value in factors.items():
            getattr(self, name).assign(value)
        self._stored_kernel().assign(self._merged(-1.0))


@keras.saving.register_keras_serializable("roformer_keras")
class Dense(Projection):
    """A `Projection` with the name of Keras's dense layer, as in earlier files."""
