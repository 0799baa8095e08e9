"""Predictions beside what others measured: published training runs."""
