"""Sheets of images: which hidden units' weights they show."""

import numpy as np
import pytest
import torch

from grbm.report.sheets import filter_sheet, which_filters


@pytest.mark.parametrize(("M", "shown"), [(3, [2, 1, 0]), (4, [3, 2, 1, 0]), (8, [7, 5, 3, 1]), (9, [8, 6, 4, 2])])
def test_filters_are_evenly_spaced_by_the_norm_of_their_weights(M, shown):
    """Unit k has a norm of k + 1, and weights of a pattern of its own."""
    W = torch.randn(16, M, generator=torch.Generator().manual_seed(0))
    W = W / W.norm(dim=0) * torch.arange(1, M + 1)
    expected = filter_sheet(W[:, shown], (1, 4, 4), len(shown))
    np.testing.assert_array_equal(filter_sheet(W, (1, 4, 4), 4), expected)
    assert not np.array_equal(filter_sheet(W[:, shown[:-1]], (1, 4, 4), 4), expected)


def test_a_sheet_says_which_units_it_shows():
    assert which_filters(torch.zeros(4, 2048)).startswith("100 of 2,048 hidden units, evenly spaced")
    assert which_filters(torch.zeros(4, 64)).startswith("all 64 hidden units")
