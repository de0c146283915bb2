"""Training images nearest to a sample, and the sheet that shows them."""

import pytest
import torch

from grbm.core.randomness import generator
from grbm.evaluate import nearest as module
from grbm.evaluate.nearest import nearest
from grbm.report.sheets import beside_nearest


@pytest.mark.parametrize("chunk", [1, 7 * 12, 4096])
def test_the_nearest_rows_are_those_of_all_distances(chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    data, images = torch.rand(50, 12, generator=generator(0)), torch.rand(9, 12, generator=generator(1))
    images[3] = data[41]
    found = nearest(images, data, 3)
    distances = torch.cdist(images.double(), data.double())
    expected, rows = distances.topk(3, largest=False)
    assert torch.equal(found.rows, rows)
    torch.testing.assert_close(found.distance, expected, atol=1e-6, rtol=1e-6)
    assert found.rows[3, 0] == 41
    assert found.distance[3, 0] < 1e-6


def test_fewer_rows_than_asked_for_are_all_of_them():
    assert nearest(torch.rand(2, 4), torch.rand(3, 4), 5).rows.shape == (2, 3)


def test_each_image_stands_before_those_nearest_to_it():
    """Grey levels tell which picture is where: 5 images in two groups, each with its two neighbours."""
    drawn = torch.linspace(0.0, 0.4, 5)[:, None].expand(5, 16)
    data = (drawn[:, None] + torch.tensor([0.1, 0.2])[:, None]).expand(5, 2, 16)
    sheet = beside_nearest(drawn, data, (1, 4, 4), columns=2)[..., 0]
    seen = {round(float(x), 2) for x in sheet[3][sheet[3] < 0.84]}
    assert seen == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5}, "images 0 and 3 in the first row, each with + 0.1 and + 0.2"
    first = [round(float(x), 2) for x in sheet[3] if x < 0.84]
    assert first[::4] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
