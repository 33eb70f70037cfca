"""The output layer only where a response token is predicted, instead of at every token of every prompt.

verl takes log-probabilities at all places of a pack and then keeps those of the responses; with a vocabulary of 49,152, a
hidden size of 576 and prompts fourteen times as long as responses, much of a pass is spent on numbers that are thrown away.
Nothing that is kept changes; elsewhere log-probabilities and entropies are 0. Imported by verl in every process
(`actor_rollout_ref.model.external_lib`), after which its fused output layer leaves out the places this engine marks.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from pimem.training import attention as attention  # registers itself

IGNORED = -100
"""Label of a place whose log-probability nobody reads."""


def labels(following: torch.Tensor, ends: torch.Tensor, responses: torch.Tensor) -> torch.Tensor:
    """`following` with `IGNORED` wherever no response token is predicted.

    `following`: the token after each one of a pack, (1, tokens), perhaps with padding at its end; `ends`: where each row ends,
    in tokens from the pack's start; `responses`: tokens of each row's response, fewer than the row has.
    """
    # The log-probability of the token at p is computed at p - 1: a response is read at its length's places before the last one.
    steps = torch.zeros(following.shape[-1] + 1, dtype=torch.int32, device=following.device)
    one = torch.ones_like(ends, dtype=torch.int32)
    steps.index_add_(0, ends - 1 - responses, one)
    steps.index_add_(0, ends - 1, -one)
    return torch.where(steps.cumsum(0)[:-1] > 0, following, IGNORED)


def marked(inputs: dict[str, Any], micro_batch: Any) -> dict[str, Any]:
    """What verl gives the model for a pack of rows, with only the places of responses labelled."""
    following, rows, responses = inputs.get("shift_labels"), micro_batch["input_ids"], micro_batch.get("responses", None)
    if following is None or responses is None or not responses.is_nested:
        return inputs
    ends, lengths = rows.offsets()[1:].to(following.device), responses.offsets().diff().to(following.device)
    return {**inputs, "shift_labels": labels(following, ends, lengths)}


def only_marked(whole: Any, hidden: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, temperature: float) -> Any:
    """`whole`, verl's fused output layer, at the labelled places alone: log-probabilities and entropies in `ids`' shape."""
    at = torch.nonzero(ids.reshape(-1) != IGNORED).reshape(-1)
    found = whole(hidden.reshape(-1, hidden.shape[-1])[at], weights, ids.reshape(-1)[at], temperature)
    return tuple(x.new_zeros(ids.numel()).index_copy(0, at, x).reshape(ids.shape) for x in found)


def _install() -> None:
    from verl.utils.experimental import torch_functional as fused
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead as Engine

    first, layer = Engine.prepare_model_inputs, fused.FusedLinearForPPO

    def prepare_model_inputs(self: Any, micro_batch: Any) -> Any:
        inputs, kept = first(self, micro_batch)
        # Split sequences are labelled by their parts, so all places stay.
        return (inputs if self.use_ulysses_sp else marked(inputs, micro_batch)), kept

    class Places(layer):  # type: ignore[misc, valid-type]
        def forward(self, hidden_states: Any, vocab_weights: Any, input_ids: Any, temperature: float = 1.0) -> Any:
            return only_marked(super().forward, hidden_states, vocab_weights, input_ids, temperature)

    Engine.prepare_model_inputs = prepare_model_inputs
    fused.FusedLinearForPPO = Places


# Other processes import this too, for the model's configuration, and need no engine.
if "verl.workers.engine_workers" in sys.modules:
    _install()
