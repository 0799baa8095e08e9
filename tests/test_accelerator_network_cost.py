"""Price and power of the network between chips, against a priced cluster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels.accelerator.network_cost import clos_tiers, network_cost
from hwmodels.accelerator.priors import prior_medians, sample
from hwmodels.errors import UnsupportedError

pytestmark = pytest.mark.fast

CLUSTER = {
    "domain": 8,
    "scaleup_bytes_per_s_per_dir": 450e9,
    "nic_bytes_per_s_per_dir": 50e9,
    "rails": 8,
}


def test_a_priced_cluster_of_8192():
    """8192 chips of 400 Gb/s on 8 rails: two tiers, 384 switches of 64 ports, 1688 USD a chip."""
    # 3 ports a chip * 8192 / 64 = 384 switches; 384 * 36000 / 8192 = 1687.5
    cost = network_cost(prior_medians(), num_chips=8192, **CLUSTER)
    assert cost.tiers[0] == 2
    assert cost.price_parts_usd["switches"][0, 0] == pytest.approx(1687.5, rel=0.01)
    # cables and transceivers of two tiers: 2560
    assert cost.price_parts_usd["links"][0, 0] == pytest.approx(2560, rel=0.01)


def test_a_priced_cluster_of_512():
    """512 chips on 8 switches: one tier, and 1320 USD of cables and transceivers a chip."""
    cost = network_cost(prior_medians(), num_chips=512, **CLUSTER)
    assert cost.tiers[0] == 1
    assert cost.price_parts_usd["links"][0, 0] == pytest.approx(1320, rel=0.05)


@pytest.mark.parametrize(
    ("endpoints", "tiers"), [(1, 0), (64, 1), (65, 2), (2048, 2), (2049, 3), (65_536, 3)]
)
def test_tiers_of_a_clos(endpoints, tiers):
    """Radix 64 reaches 64, 2 * 32^2 = 2048 and 2 * 32^3 = 65536 endpoints."""
    assert clos_tiers(endpoints, 64.0) == tiers


@given(st.integers(16, 100_000), st.floats(1e9, 1e12), st.floats(1e9, 1e12), st.floats(1, 8))
def test_faster_links_cost_more_money_and_power(chips, scaleup, nic, over):
    """Every rate has a price and a power, and oversubscription saves some of both."""
    draws = sample(4, np.random.default_rng(0))
    shape = {"num_chips": chips, "domain": 8}

    def cost(up, out, ratio):
        return network_cost(
            draws,
            scaleup_bytes_per_s_per_dir=up,
            nic_bytes_per_s_per_dir=out,
            oversubscription=ratio,
            **shape,
        )

    base = cost(scaleup, nic, over)
    for more in (cost(2 * scaleup, nic, over), cost(scaleup, 2 * nic, over)):
        assert np.all(more.price_usd_per_chip > base.price_usd_per_chip)
        assert np.all(more.power_w_per_chip > base.power_w_per_chip)
    assert np.all(cost(scaleup, nic, 1.0).price_usd_per_chip >= base.price_usd_per_chip)


def test_one_domain_needs_no_cards():
    """A cluster inside one scale-up domain pays for that domain only."""
    cost = network_cost(prior_medians(), num_chips=8, **CLUSTER)
    assert cost.tiers[0] == 0
    assert cost.price_parts_usd["cards"][0, 0] == 0
    assert cost.price_parts_usd["scaleup_switches"][0, 0] > 0


def test_direct_links_need_no_switch():
    """A torus has links and no scale-up switch."""
    cost = network_cost(prior_medians(), num_chips=4096, scaleup="torus", **CLUSTER)
    assert cost.price_parts_usd["scaleup_switches"][0, 0] == 0
    assert cost.price_parts_usd["scaleup_links"][0, 0] > 0


def test_unknown_topology_is_refused():
    """Only topologies with a price are accepted."""
    with pytest.raises(UnsupportedError, match="dragonfly"):
        network_cost(prior_medians(), num_chips=64, scaleup="dragonfly", **CLUSTER)
