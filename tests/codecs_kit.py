"""How each codec is set up to be tested, and the vectors and messages of the conformance kit."""

from __future__ import annotations

from typing import Any

from chimera.testing.messages import HUGE, damaged, hard_vectors, kept, layout_of, same

__all__ = ["HUGE", "LAYERS", "SETUPS", "damaged", "hard_vectors", "kept", "layout_of", "same"]
LAYERS = {"name": "layer-wise", "layers": {"t0": {"name": "top-k", "ratio": 0.1}, "t1": "sign"}, "default": "int8"}
SETUPS: dict[str, dict[str, Any]] = {
    "identity": {"name": "identity"},
    "fp16": {"name": "cast"},
    "bf16": {"name": "cast", "to": "bf16"},
    "int8": {"name": "int8"},
    "int8 stochastic": {"name": "int8", "stochastic": True},
    "int8 blocks": {"name": "int8", "block": 256},
    "int8 short blocks": {"name": "int8", "block": 16, "stochastic": True},
    "qsgd": {"name": "qsgd"},
    "qsgd euclidean": {"name": "qsgd", "norm": "l2"},
    "qsgd tensors": {"name": "qsgd", "levels": 7, "norm": "l2", "block": 0},
    "qsgd 3 bits": {"name": "qsgd", "levels": 3, "norm": "max", "block": 64},
    "qsgd 11 bits": {"name": "qsgd", "levels": 1000, "norm": "max"},
    "terngrad": {"name": "terngrad"},
    "terngrad unclipped": {"name": "terngrad", "clip": 0},
    "sign": {"name": "sign"},
    "sign unscaled": {"name": "sign", "scaled": False},
    "onebit": {"name": "onebit"},
    "onebit without feedback": {"name": "onebit", "error_feedback": False},
    "binary": {"name": "binary"},
    "natural": {"name": "natural"},
    "nonuniform": {"name": "nonuniform"},
    "nonuniform given": {"name": "nonuniform", "levels": [0, 0.125, 0.25, 0.5, 1], "stochastic": True},
    "top-k": {"name": "top-k"},
    "top-k bitmap": {"name": "top-k", "ratio": 0.5},
    "top-k sampled": {"name": "top-k", "sampled": True, "error_feedback": True},
    "random-k": {"name": "random-k", "ratio": 0.1},
    "random-k scaled": {"name": "random-k", "ratio": 0.3, "scaled": True},
    "threshold": {"name": "threshold", "value": 1.0},
    "powersgd": {"name": "powersgd"},
    "dgc": {"name": "dgc", "ratio": 0.01, "clip": 1.0, "warm_up": 3},
    "loss-aware": {"name": "loss-aware"},
    "loss-aware exact": {"name": "loss-aware", "exact": True},
    "loss-aware linear": {"name": "loss-aware", "bits": 4},
    "loss-aware logarithmic": {"name": "loss-aware", "bits": 3, "levels": "logarithmic"},
    "adaptive": {"name": "adaptive", "every": 2},
    "adaptive speed": {
        "name": "adaptive",
        "by": "speed",
        "codecs": ["terngrad", {"name": "top-k", "ratio": 0.2}, "int8"],
        "seconds": 0.01,
        "bandwidth_bytes_s": 1e6,
    },
    "delta": {"name": "delta", "codec": {"name": "top-k", "ratio": 0.1}},
    "delta of ternary": {"name": "delta", "codec": "terngrad", "rate": 0.25},
    "delta of rows": {"name": "delta", "codec": "rows"},
    "rows": {"name": "rows"},
    "rows, compressed": {"name": "rows", "lossless": True},
    "error-feedback": {"name": "error-feedback", "codec": {"name": "top-k", "ratio": 0.05}},
    "lossless": {"name": "lossless", "codec": "terngrad"},
    "layer-wise": LAYERS,
    "all of them": {**LAYERS, "error_feedback": True, "lossless": True},
}
