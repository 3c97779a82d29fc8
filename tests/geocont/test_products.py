import pytest
import torch
from geocont.ablations import products


@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize(("rows", "n", "m"), [(5, 7, 3), (128, 256, 192), (128, 784, 256)])
def test_products_and_gradients_are_those_of_a_plain_product(networks, rows, n, m):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(networks, rows, n, generator=generator).requires_grad_()
    weight = torch.randn(networks, m, n, generator=generator).requires_grad_()
    upstream = torch.randn(networks, rows, m, generator=generator)
    found = products.linear(x, weight)
    torch.testing.assert_close(found, x @ weight.mT, rtol=1e-4, atol=1e-3)
    to_x, to_weight = torch.autograd.grad(found, (x, weight), upstream)
    torch.testing.assert_close(to_x, upstream @ weight, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(to_weight, upstream.mT @ x, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("onednn", [True, False])
def test_without_onednn_the_numbers_are_the_same(monkeypatch, onednn):
    monkeypatch.setattr(products, "_HAS_ONEDNN", products._HAS_ONEDNN and onednn)
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(1, 128, 256, generator=generator), torch.randn(1, 256, 256, generator=generator)
    torch.testing.assert_close(
        products.linear(x, weight).double(), x.double() @ weight.double().mT, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("measured", [(), (0,), (1,), (2, 3), (1, 4), (0, 1, 2, 3, 4, 5)])
def test_gradients_go_to_their_place_and_a_measured_step_finds_the_sum_before_it(measured):
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(3, 2, 4, 4, generator=generator)
    gradients = products.WeightGradients(torch.zeros_like(weight), torch.zeros_like(weight))
    total = torch.zeros_like(weight)
    for step in range(6):
        x = torch.randn(2, 8, 4, generator=generator).requires_grad_()
        gradients.begin(is_measured=step in measured)
        products.linear(x, weight[1], gradients, 1).sum().backward()
        expected = torch.zeros_like(weight)
        expected[1] = torch.ones(2, 4, 8) @ x.detach()
        torch.testing.assert_close(gradients.values, expected)
        if step in measured:
            torch.testing.assert_close(gradients.totals, total, rtol=0, atol=0)
        total += gradients.values
    gradients.settle()
    torch.testing.assert_close(gradients.totals, total, rtol=0, atol=0)
    gradients.settle()
    torch.testing.assert_close(gradients.totals, total, rtol=0, atol=0)
    assert gradients.spent() > 0
    assert gradients.spent() == 0
