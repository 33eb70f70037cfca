"""The output layer at responses alone gives what the whole one gives there, gradients included."""

from __future__ import annotations

import pytest
import torch

from pimem.training import places


def test_a_response_is_read_one_place_before_each_of_its_tokens() -> None:
    # Rows of 5, 3 and 4 tokens with responses of 2, 1 and 3, and two tokens of padding.
    following = torch.arange(100, 114)[None]
    found = places.labels(following, torch.tensor([5, 8, 12]), torch.tensor([2, 1, 3]))
    assert torch.nonzero(found[0] != places.IGNORED).flatten().tolist() == [2, 3, 6, 8, 9, 10]
    assert found[0, 2] == 102


@pytest.mark.engine
def test_what_is_kept_is_what_the_whole_layer_gives() -> None:
    pytest.importorskip("verl")
    from verl.utils.experimental.torch_functional import FusedLinearForPPO

    torch.manual_seed(0)
    rows = torch.nested.as_nested_tensor([torch.randint(0, 50, (n,)) for n in (5, 3, 4)], layout=torch.jagged)
    responses = torch.nested.as_nested_tensor([torch.zeros(n) for n in (2, 1, 3)], layout=torch.jagged)
    following = torch.roll(rows.values(), -1)[None]
    inputs = places.marked({"shift_labels": following}, {"input_ids": rows, "responses": responses})
    layer, kept = FusedLinearForPPO(chunk_size=4), torch.tensor([2, 3, 6, 8, 9, 10])
    grads, values = [], []
    for marked in (False, True):
        hidden, weights = torch.randn(1, 12, 8, generator=torch.Generator().manual_seed(1)), torch.ones(50, 8).tril()
        hidden.requires_grad_(), weights.requires_grad_()
        if marked:
            log_probs, entropy = places.only_marked(layer.forward, hidden, weights, inputs["shift_labels"], 0.7)
        else:
            log_probs, entropy = layer(hidden, weights, following, 0.7)
        (log_probs[0, kept] * torch.arange(1.0, 7.0)).sum().backward()
        values.append((log_probs[0, kept].detach(), entropy[0, kept].detach()))
        grads.append((hidden.grad, weights.grad))
    for one, other in zip(values[0] + grads[0], values[1] + grads[1], strict=True):
        assert torch.allclose(one, other, atol=1e-5), (one, other)
