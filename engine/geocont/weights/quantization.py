"""Quantised weights: what is decoded, what is refused and why, and which side tensors belong to which weight."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Weight:
    """A weight of the model, whatever tensors of the checkpoint it is stored in.

    `name` and `shape` are those of the weight itself: the scales, blocks and zero points that a quantised one is stored
    with are folded into it. `dtype` says in words how it is stored ("BF16", "FP8 in blocks of 128×128"), `bytes` what
    is read of it. A `refused` weight cannot be read: the text is the reason and the remedy; it is empty otherwise.
    `sources` are the checkpoint's tensors that it is made from.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    quantized: bool
    refused: str
    sources: tuple[str, ...]
