"""The version of the distribution, read by the build and printed in every result."""

__version__ = "0.1.0"
