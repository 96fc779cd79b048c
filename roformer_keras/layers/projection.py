"""A dense layer to which LoRA can be added, saved with the rest, and merged."""

import keras
from keras import ops

__all__ = ["Projection", "new_structure_version", "structure_version"]

_FACTORS = ("lora_kernel_a", "lora_kernel_b")
_version = 0


def structure_version() -> int:
    """Another number whenever a layer has changed what it computes with.

    A function that was compiled before does not know of weights that were added.
    """
    return _version


def new_structure_version():
    """Says that a layer computes with something else than weights it had before."""
    global _version
    _version += 1


@keras.saving.register_keras_serializable("roformer_keras")
class Projection(keras.layers.Dense):
    """Keras's dense layer, whose LoRA factors outlive a file.

    Keras saves the kernel with the product of the factors in it, and loads the factors
    as zeros, from which no gradient leads away. Here they are saved beside that kernel:
    who knows nothing of them still reads the fine-tuned kernel, and who goes on
    training has them back.

    Arguments, call arguments and returns: as of `keras.layers.Dense`.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """

    def call(self, inputs, training=None):
        if keras.backend.backend() != "tensorflow" or len(inputs.shape) < 3:
            return super().call(inputs, training=training)
        # TensorFlow joins product, bias and activation in one kernel only where nothing
        # stands between them, and Keras reshapes the product of more than two axes.
        *outer, dim = ops.shape(inputs)
        outputs = super().call(ops.reshape(inputs, (-1, dim)), training=training)
        return ops.reshape(outputs, (*outer, self.units))

    def enable_lora(self, *arguments, **options):
        super().enable_lora(*arguments, **options)
        new_structure_version()

    def quantize(self, *arguments, **options):
        super().quantize(*arguments, **options)
        new_structure_version()

    def merge_lora(self):
        """Adds the factors' product to the kernel, and drops the factors."""
        new_structure_version()
        self._kernel.assign(self._merged(1.0))
        for name in _FACTORS:
            self._untrack_variable(getattr(self, name))
            delattr(self, name)
        self.lora_enabled = False
        self.lora_rank = self.lora_alpha = None

    def _merged(self, sign):
        """The kernel plus or minus the product, in the kernel's own type.

        The property `kernel` has the compute type, which may be a bfloat16.
        """
        product = ops.matmul(self.lora_kernel_a, self.lora_kernel_b)
        scale = sign * self.lora_alpha / self.lora_rank
        return ops.cast(self._kernel + scale * product, self._kernel.dtype)

    def save_own_variables(self, store):
        own = {}
        super().save_own_variables(own)
        if self.lora_enabled:
            if self.quantization_mode is None:
                own["0"] = self._merged(1.0)
            own.update({name: getattr(self, name) for name in _FACTORS})
        for name, value in own.items():
            store[name] = value

    def load_own_variables(self, store):
        own = {name: store[name] for name in store.keys()}  # noqa: SIM118
        factors = {name: own.pop(name) for name in _FACTORS if name in own}
        if not self.lora_enabled:
            super().load_own_variables(own)
            return
        if not factors:
            # Those of a layer that has just got them.
            factors = {
                "lora_kernel_a": ops.convert_to_numpy(self.lora_kernel_a),
                "lora_kernel_b": ops.zeros(self.lora_kernel_b.shape),
            }
        super().load_own_variables(own)
        for name, value in factors.items():
            getattr(self, name).assign(value)
        if self.quantization_mode is None:
            self._kernel.assign(self._merged(-1.0))
