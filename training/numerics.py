"""Quantisers, norms, rotation and mHC mixing of the model, differentiable: every rounding is straight-through (its
gradient is the identity). The values are those of the engine: power-of-two scales from exponent bits, ties to even,
the same floors and clamps. Used by model.py, draft.py and checkpoint.py; knows nothing of parameters or layers."""

import math

import numpy as np
import torch

GROUP = 32  # K elements of one scale
EPS = 1e-20
INV_448 = float(np.uint32(0x3B124925).view(np.float32))
INV_6 = float(np.uint32(0x3E2AAAAB).view(np.float32))


def straight_through(rounded, x):
    """`rounded` forward, the identity backward. x - x.detach() is exactly zero, so no bit of `rounded` changes."""
    return rounded.detach() + (x - x.detach())


def pow2ceil(t):
    """(2^ceil(log2 t), its reciprocal), both exact, from the exponent field of positive fp32 numbers."""
    bits = t.contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32), ((254 - exponent) << 23).view(torch.float32)


def round_e4m3(v):
    return v.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def round_e2m1(v):
    """Ties to even: steps of 1/2 below 2, of 1 below 4, of 2 up to 6."""
    size = v.abs().clamp(max=6.0)
    fine = torch.round(size * 2) * 0.5
    middle = torch.round(size)
    coarse = torch.round(size * 0.5) * 2
    return torch.copysign(torch.where(size < 2, fine, torch.where(size < 4, middle, coarse)), v)


def quantise_activation(x):
    """QA: e4m3 with a power-of-two scale per 32 elements of the last axis; bf16 in and out."""
    wide = x.float().unflatten(-1, (-1, GROUP))
    scale, inverse = pow2ceil(wide.abs().amax(-1, keepdim=True).clamp(min=1e-4) * INV_448)
    return straight_through((round_e4m3(wide * inverse) * scale).flatten(-2).to(x.dtype), x)


def quantise_index(x):
    """QI: e2m1 with a power-of-two scale per 32 elements."""
    wide = x.float().unflatten(-1, (-1, GROUP))
    scale, inverse = pow2ceil(wide.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) * INV_6)
    return straight_through((round_e2m1(wide * inverse) * scale).flatten(-2).to(x.dtype), x)


def quantise_compressed(x):
    """QC: e2m1 with an e4m3 scale per 16 elements; the quotient is a true division."""
    wide = x.float().unflatten(-1, (-1, 16))
    scale = round_e4m3(wide.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9) / 6.0)
    return straight_through((round_e2m1(wide / scale) * scale).flatten(-2).to(x.dtype), x)


def fp8_parts(weight):
    """(codes as floats, scales) of [..., N, K] in 32x32 groups; a scale for each group, [..., N/32, K/32]. N may be
    ragged."""
    rows = weight.shape[-2]
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -rows % GROUP))
    tiles = padded.unflatten(-2, (-1, GROUP)).unflatten(-1, (-1, GROUP))  # [..., N/32, 32, K/32, 32]
    scale, inverse = pow2ceil(tiles.abs().amax((-3, -1), keepdim=True).clamp(min=2.0**-40) * INV_448)
    codes = round_e4m3(tiles * inverse).flatten(-2).flatten(-3, -2)[..., :rows, :]
    return codes, scale[..., :, 0, :, 0]


def row_parts(weight, largest, rounding):
    """(codes as floats, scales) of [..., K] with one power-of-two scale per 32 elements of a row."""
    groups = weight.unflatten(-1, (-1, GROUP))
    scale, inverse = pow2ceil(groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-40) * largest)
    return rounding(groups * inverse).flatten(-2), scale[..., 0]


def fp4_parts(weight):
    return row_parts(weight, INV_6, round_e2m1)


def fp8_row_parts(weight):
    return row_parts(weight, INV_448, round_e4m3)


def spread(scale, rows=1):
    """A scale for each element, from a scale for each group of `rows` x 32."""
    wide = scale.repeat_interleave(GROUP, -1)
    return wide if rows == 1 else wide.repeat_interleave(rows, -2)


def fp8_weight(weight):
    """Fake-quantised [..., N, K], bf16 (exact: e4m3 times a power of two)."""
    codes, scale = fp8_parts(weight.detach())
    value = codes * spread(scale, GROUP)[..., : weight.shape[-2], :]
    return straight_through(value, weight).bfloat16()


def fp4_weight(weight):
    codes, scale = fp4_parts(weight.detach())
    return straight_through(codes * spread(scale), weight).bfloat16()


def fp8_rows(rows):
    codes, scale = fp8_row_parts(rows.detach())
    return straight_through(codes * spread(scale), rows).bfloat16()


def rms_norm(x, weight):
    """One rounding at the end; the weight is stored in bf16 and used in fp32."""
    wide = x.float()
    return (weight.bfloat16().float() * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS))).bfloat16()


def rope_frequencies(rope_dim, theta, yarn=None):
    """fp32 frequencies of the rotated pairs; `yarn` = (factor, beta_fast, beta_slow, original positions)."""
    powers = np.array([theta ** (2 * i / rope_dim) for i in range(rope_dim // 2)]).astype(np.float32)
    frequencies = (np.float32(1) / powers).astype(np.float32)
    if yarn is None:
        return frequencies
    factor, beta_fast, beta_slow, original = yarn

    def bound(beta):
        return rope_dim * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(0, math.floor(bound(beta_fast))), min(rope_dim - 1, math.ceil(bound(beta_slow)))
    ramp = (np.arange(rope_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(max(high - low, 0.001))
    keep = np.float32(1) - np.clip(ramp, 0, 1).astype(np.float32)
    slow = (frequencies / np.float32(factor)).astype(np.float32)
    return (slow * (np.float32(1) - keep) + frequencies * keep).astype(np.float32)


def rope_table(positions, frequencies):
    """cos and sin [positions, rope_dim/2] fp32 of the fp32 angle."""
    angle = (np.asarray(positions, np.float32)[:, None] * frequencies[None]).astype(np.float64)
    return torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32))


def rotate(x, cos, sin):
    """Turns the adjacent pairs of the last 2*cos.shape[-1] elements; cos and sin broadcast against [..., pairs]."""
    rope_dim = 2 * cos.shape[-1]
    plain, turned = x.split([x.shape[-1] - rope_dim, rope_dim], -1)
    pairs = turned.float().unflatten(-1, (-1, 2))
    first, second = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    return torch.cat([plain, turned.to(x.dtype)], -1)


def sinkhorn(rows, iterations, eps, exact):
    """[T, hc, hc] logits to a nearly doubly stochastic matrix. In training only the last rounds carry a gradient: the
    earlier ones act as a constant factor, and the rounds contract so fast that the difference is not seen."""
    matrix = torch.softmax(rows, -1) + eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    with_gradient = iterations - 1 if exact else 3
    early = matrix.detach()
    for _ in range(iterations - 1 - with_gradient):
        early = early / (early.sum(-1, keepdim=True) + eps)
        early = early / (early.sum(-2, keepdim=True) + eps)
    if not exact:
        matrix = matrix * (early / matrix.detach())
    for _ in range(with_gradient):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix
