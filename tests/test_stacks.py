"""Stacks chosen by name take published levels; a file that states its own keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

import hwmodels
from dse.stacks import calibrated_stack, load_stack
from dse.stacks.stack import HERE

pytestmark = pytest.mark.fast


def written(folder: Path, extra: str = "") -> str:
    text = (HERE / "megatron-core.yaml").read_text(encoding="utf-8")
    path = folder / "mine.yaml"
    path.write_text(text.replace("name: megatron-core", "name: mine") + extra, encoding="utf-8")
    return str(path)


def test_a_level_of_ones_own_is_kept(tmp_path):
    """compute_factor and level_sd of the user's file reach the evaluator as they stand."""
    chip = hwmodels.load_chip("h100")
    stack = calibrated_stack(written(tmp_path, "compute_factor: 1.37\n"), chip)
    assert stack.compute_factor == 1.37
    assert stack.level_sd == load_stack("megatron-core").level_sd
    assert stack.calibration == "own"


def test_a_new_name_takes_the_mean_of_its_silicon(tmp_path):
    """Without a level of its own a file is priced at the silicon's, with a wider spread."""
    chip = hwmodels.load_chip("h100")
    mine, known = calibrated_stack(written(tmp_path), chip), calibrated_stack(None, chip)
    assert mine.calibration == known.calibration == "shipped"
    assert mine.compute_factor > 1.0
    assert mine.level_sd > known.level_sd
