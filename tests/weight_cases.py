"""Configurations whose weight tables differ."""

from roformer_keras.base.config import RoFormerConfig

SIZES = {
    "vocabulary_size": 11,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
}
OPTIONS = {
    "v1": {},
    "v2": {"model_type": "roformer_v2"},
    "embedding": {"embedding_dim": 6},
    "v2-embedding": {"model_type": "roformer_v2", "embedding_dim": 6},
    "key-size": {"attention_key_size": 6},
    "untied": {"tie_word_embeddings": False, "embedding_dim": 6},
    "v2-untied": {"model_type": "roformer_v2", "tie_word_embeddings": False},
    "pooler": {"pooler_activation": "tanh"},
    "nsp": {"pooler_activation": "tanh", "with_nsp": True},
    "embedding-nsp": {
        "embedding_dim": 6,
        "pooler_activation": "tanh",
        "with_nsp": True,
    },
    "shared-segments": {"shared_segment_embeddings": True},
    "segments": {"num_segments": 5},
    "condition": {"layer_norm_cond_size": 3},
    "condition-hidden": {
        "layer_norm_cond_size": 3,
        "layer_norm_cond_hidden_size": 5,
        "embedding_dim": 6,
        "pooler_activation": "linear",
    },
    "positions": {"custom_position_ids": True, "residual_attention_scores": True},
    "eleven-layers": {"num_layers": 11},
}
CONFIGS = {
    name: RoFormerConfig(**{**SIZES, **options}) for name, options in OPTIONS.items()
}
