"""Sizes of a two-dimensional convolution: outputs, FLOP, traffic, and the product that it is.

Each direction is a matrix product whose operand of windows is never stored [1]:

    direction  rows m         columns n  sum k               products
    forward    b P Q          K/g        C/g R S             g
    dgrad      b P Q          C/g        K/g R S / phases    g * phases
    wgrad      C/g R S        K/g        b P Q               g

with b images, C input and K output channels, windows of R x S, an output of P x Q and g groups.
The gradient of the input falls into min(stride^2, R S) phases of pixels that see the same taps;
pixels that no tap reaches are only written.

Not covered: dilation, unequal padding on two sides.

References: [1] Chetlur et al., cuDNN, arXiv 1410.0759.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np

from hwmodels.errors import ConfigError, UnsupportedError
from hwmodels.kernels.parts import Values, element_bytes, shaped
from hwmodels.table import FloatArray

Direction = Literal["forward", "dgrad", "wgrad"]
"""Forward, gradient of the input, gradient of the weights."""
DIRECTIONS: tuple[Direction, ...] = ("forward", "dgrad", "wgrad")

_OUTPUT_BYTES = 2.0  # a narrower input is still written in 16 bit


@dataclass(frozen=True, slots=True)
class Convolution:
    """Sizes of a convolution; each broadcasts to the shape S of the others.

    Args:
        batch: Images.
        height: Of the input, pixels.
        width: Of the input, pixels.
        in_channels: Of the input, all groups together.
        out_channels: Of the output, all groups together.
        kernel_h: Height of the window.
        kernel_w: Width of the window.
        stride_h: Pixels from one window to the next below.
        stride_w: The same to the right.
        pad_h: Zeros above, and as many below.
        pad_w: Zeros to the left, and as many to the right.
        groups: Independent slices of the channels; `in_channels` of them is depthwise.

    Raises:
        ConfigError: A size that is not positive, channels that groups do not divide, or a window
            larger than the padded input.
    """

    batch: Values
    height: Values
    width: Values
    in_channels: Values
    out_channels: Values
    kernel_h: Values
    kernel_w: Values
    stride_h: Values = 1
    stride_w: Values = 1
    pad_h: Values = 0
    pad_w: Values = 0
    groups: Values = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name.startswith("pad") else 1
            value = np.asarray(getattr(self, field.name), dtype=float)
            if not np.all(value >= least):
                raise ConfigError(
                    f"{field.name} of a convolution is below {least}",
                    field=field.name,
                    value=float(np.min(value)),
                )
        whole = self.sizes
        for name in ("in_channels", "out_channels"):
            channels = getattr(whole, name)
            if np.any(channels % whole.groups != 0):
                raise ConfigError(
                    f"{name} is no multiple of the groups",
                    field="groups",
                    value=float(np.max(whole.groups)),
                )
        for name, size in (("kernel_h", whole.out_height), ("kernel_w", whole.out_width)):
            if not np.all(size >= 1):
                raise ConfigError(
                    "the window is larger than the padded input",
                    field=name,
                    value=float(np.max(np.asarray(getattr(self, name), dtype=float))),
                )

    @property
    def sizes(self) -> Sizes:
        """All sizes, with those of the output, as arrays of the common shape S."""
        b, h, w, c, k, r, s, down, across, pad_h, pad_w, groups = shaped(
            *(getattr(self, field.name) for field in fields(self))
        )[0]
        out_height = np.floor((h + 2.0 * pad_h - r) / down) + 1.0
        out_width = np.floor((w + 2.0 * pad_w - s) / across) + 1.0
        return Sizes(b, h, w, c, k, r, s, down, across, groups, out_height, out_width)

    @property
    def flop(self) -> FloatArray:
        """(*S,) FLOP of one direction by the direct count, padding included."""
        s = self.sizes
        return 2.0 * s.pixels * s.out_channels * s.in_channels / s.groups * s.taps


class Sizes(NamedTuple):
    """A convolution's sizes as float arrays of one shape."""

    batch: FloatArray
    height: FloatArray
    width: FloatArray
    in_channels: FloatArray
    out_channels: FloatArray
    kernel_h: FloatArray
    kernel_w: FloatArray
    stride_h: FloatArray
    stride_w: FloatArray
    groups: FloatArray
    out_height: FloatArray
    out_width: FloatArray

    @property
    def pixels(self) -> FloatArray:
        """Of all outputs."""
        return self.batch * self.out_height * self.out_width

    @property
    def taps(self) -> FloatArray:
        """Of the window."""
        return self.kernel_h * self.kernel_w

    @property
    def strides(self) -> FloatArray:
        """Input pixels an output pixel."""
        return self.stride_h * self.stride_w


def product(
    s: Sizes, direction: Direction, *, multiple: float = 1.0
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """(m, n, k, batch), each (*S,), of the matrix product that one direction is.

    Args:
        s: Sizes.
        direction: Which of the three.
        multiple: What the channels of a window are padded to.

    Raises:
        UnsupportedError: Unknown direction.
    """
    check_direction(direction)
    inputs, outputs = s.in_channels / s.groups, s.out_channels / s.groups
    padded = np.ceil((outputs if direction == "dgrad" else inputs) / multiple) * multiple
    if direction == "forward":
        return s.pixels, outputs, padded * s.taps, s.groups
    if direction == "dgrad":
        phases = np.minimum(s.strides, s.taps)
        return s.pixels, inputs, padded * s.taps / phases, s.groups * phases
    return padded * s.taps, outputs, s.pixels, s.groups


def traffic_bytes(conv: Convolution, *, dtype: str, direction: Direction) -> FloatArray:
    """(*S,) bytes across the memory interface: input, weights and output or their gradients.

    A stride over the window's size reads only the pixels under a window.

    Raises:
        UnsupportedError: Unknown dtype or direction.
    """
    check_direction(direction)
    s, size = conv.sizes, element_bytes(dtype)
    written = max(size, _OUTPUT_BYTES)
    weights = s.out_channels * s.in_channels / s.groups * s.taps
    result = s.pixels * s.out_channels
    if direction == "dgrad":
        every = s.batch * s.in_channels * s.height * s.width
        return size * (result + weights) + written * every
    seen = np.minimum(s.height, s.out_height * s.kernel_h)
    seen = s.batch * s.in_channels * seen * np.minimum(s.width, s.out_width * s.kernel_w)
    if direction == "forward":
        return size * (seen + weights) + written * result
    return size * (seen + result) + written * weights


def check_direction(direction: str) -> None:
    """Refuse what is not one of `DIRECTIONS`.

    Raises:
        UnsupportedError: It is not.
    """
    if direction not in DIRECTIONS:
        raise UnsupportedError(
            f"unknown direction {direction!r}",
            field="direction",
            value=direction,
            allowed=list(DIRECTIONS),
        )
