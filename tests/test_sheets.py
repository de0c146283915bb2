"""Sheets of images: which hidden units' weights they show."""

import numpy as np
import pytest
import torch

from grbm.report.sheets import filter_sheet, which_filters


@pytest.mark.parametrize(("M", "shown"), [(3, [2, 1, 0]), (4, [3, 2, 1, 0]), (8, [7, 5, 3, 1]), (9, [8, 6, 4, 2])])
def test_filters_are_evenly_spaced_by_the_norm_of_their_weights(M, shown):
    """Unit k has a norm of k + 1, and weights of a pattern of its own; a weak one is not shown."""
    W = torch.randn(16, M + 1, generator=torch.Generator().manual_seed(0))
    W = W / W.norm(dim=0) * torch.tensor([*range(1, M + 1), 0.09 * M])
    expected = filter_sheet(W[:, shown], (1, 4, 4), len(shown))
    np.testing.assert_array_equal(filter_sheet(W, (1, 4, 4), 4), expected)
    assert not np.array_equal(filter_sheet(W[:, shown[:-1]], (1, 4, 4), 4), expected)


def test_a_sheet_says_which_units_it_shows():
    one = torch.ones(4, 1)
    assert which_filters(one.expand(4, 2048)) == "100 of 2,048 hidden units, by the norm of their weights"
    assert which_filters(one.expand(4, 64)) == "all 64 hidden units, by the norm of their weights"
    rest = "{} hidden units, those with a tenth of the largest norm or more"
    assert which_filters(torch.cat([one, one, 0.01 * one], 1)) == f"{rest.format('2 of 3')}, by norm"
    many = torch.cat([one.expand(4, 109), 0.01 * one.expand(4, 147)], 1)
    assert which_filters(many) == f"{rest.format('109 of 256')}; 100 of these are shown, by norm"
    for same in (0.0, torch.nan):  # nothing learned, or no numbers
        assert which_filters(torch.full((4, 3), same)).startswith("all 3")
