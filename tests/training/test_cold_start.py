"""The cold start on a tiny model: it learns, its merged weights are what was trained, bad input is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from pimem import adapters, models  # noqa: E402
from pimem.errors import ConfigError, DataError  # noqa: E402
from pimem.training import cold_start, lora  # noqa: E402
from pimem.training.data import Table  # noqa: E402
from pimem.training.drafts import Example  # noqa: E402
from pimem.training.recipe import ColdStart  # noqa: E402
from pimem.training.teacher import NO, YES  # noqa: E402


class Tags:
    """A tokenizer that knows the check tags."""

    def encode(self, text):
        return np.array({YES: [1, 2, 3, 9], NO: [1, 2, 4, 9]}[text], dtype=np.uint32)


def tiny(seed=0):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


def table(n=64):
    """Yes where the prompt holds token 20, no where it does not."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(n):
        prompt = rng.integers(10, 20, size=int(rng.integers(4, 12)))
        if i % 2:
            prompt[int(rng.integers(len(prompt)))] = 20
        response = [*Tags().encode(YES if i % 2 else NO), 0]
        made.append(Example("case", prompt.astype(np.uint32), np.array(response, dtype=np.uint32)))
    return Table.of(made, meta=False)


RECIPE = ColdStart(rank=4, learning_rate=2e-2, batch_tokens=128, epochs=6, seed=1)


def test_loss_falls_and_the_merged_model_is_the_trained_one():
    model, base = tiny(), tiny()
    history = cold_start.train(RECIPE, model, table(), Tags())
    assert np.mean([h["loss"] for h in history[-5:]]) < 0.5 * history[0]["loss"]
    ids = torch.arange(10, 22)[None]
    for _, module in lora.adapted(model):
        with torch.no_grad():
            module.a.copy_(module.a.bfloat16())
            module.b.copy_(module.b.bfloat16())
    trained = model(ids).logits
    adapter = lora.tensors(model)
    lora.apply(base, adapter, RECIPE.scale)
    torch.testing.assert_close(base(ids).logits, trained, atol=1e-5, rtol=1e-4)
    lora.detach(model)
    torch.testing.assert_close(model(ids).logits, tiny()(ids).logits)


def test_what_a_cold_start_writes_is_an_adapter_of_its_base(tmp_path):
    base, out, merged = (tmp_path / name for name in ("base", "out", "merged"))
    merged.mkdir()
    tiny().save_pretrained(base)
    model = tiny()
    cold_start.train(RECIPE, model, table(), Tags(), steps=3)
    adapters.save(lora.tensors(model), out, cold_start.described(RECIPE, base, "cpu"))
    adapter = adapters.read(out)
    assert (adapter.base, adapter.base_fingerprint) == ("smollm2-135m", models.fingerprint(base))
    adapters.merge(adapter, base, merged)
    again = transformers.AutoModelForCausalLM.from_pretrained(merged)
    ids = torch.arange(10, 22)[None]
    torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=2e-2, rtol=2e-2)
    assert not torch.allclose(again(ids).logits, tiny()(ids).logits, atol=2e-2)


def test_only_response_tokens_count_and_the_decision_weighs_more():
    made = table(2)
    feed = cold_start.Feed(made, Tags(), 6.0, "cpu")
    ids, at, wanted, weights = feed.batch(np.array([0, 1]))
    assert ids.shape == (2, 64)
    assert wanted.tolist() == [1, 2, 4, 9, 0, 1, 2, 3, 9, 0]
    assert ids.flatten()[at + 1].tolist() == wanted.tolist()
    assert at.tolist() == [row * 64 + int(p) - 1 + i for row, p in enumerate(made.prompts) for i in range(5)]
    assert weights.tolist() == [1, 1, 6, 1, 1] * 2


def test_padding_does_not_change_the_loss():
    model, made = tiny(), table(2)
    feed = cold_start.Feed(made, Tags(), 1.0, "cpu")
    together = cold_start.loss_of(model, *feed.batch(np.array([0, 1])))
    alone = [cold_start.loss_of(model, *feed.batch(np.array([i]))) for i in (0, 1)]
    torch.testing.assert_close(together, sum(alone) / 2)


def test_every_example_is_in_one_step_and_no_step_is_too_large():
    lengths = np.random.default_rng(0).integers(3, 60, size=300)
    steps = list(cold_start.batches(lengths, dataclasses.replace(RECIPE, batch_examples=7), np.random.default_rng(1)))
    assert sorted(np.concatenate(steps)) == list(range(300))
    assert all(len(s) <= 7 and len(s) * lengths[s].max() <= 128 for s in steps)
    with pytest.raises(DataError, match="batch_tokens=128"):
        list(cold_start.batches(np.array([200]), RECIPE, np.random.default_rng(1)))


def test_a_loss_that_is_no_number_ends_the_run():
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(DataError, match="the loss is nan at step 0"):
        cold_start.train(RECIPE, model, table(), Tags(), steps=3)


def test_training_ends_by_steps_and_by_the_deadline():
    assert len(cold_start.train(RECIPE, tiny(), table(), Tags(), steps=3)) == 3
    assert cold_start.train(RECIPE, tiny(), table(), Tags(), deadline=1e-9) == []


def test_a_set_survives_its_file(tmp_path):
    made = table(6)
    made.save(tmp_path / "train.xz")
    again = Table.load(tmp_path / "train.xz")
    assert np.array_equal(again.ids, made.ids)
    assert np.array_equal(again.starts, made.starts)
    assert again.cases == made.cases
    (tmp_path / "train.xz").write_bytes(b"no")
    with pytest.raises(DataError, match=r"train\.xz"):
        Table.load(tmp_path / "train.xz")


def test_an_adapter_of_another_base_is_refused():
    model = tiny()
    cold_start.train(RECIPE, model, table(), Tags(), steps=1)
    adapter = lora.tensors(model)
    with pytest.raises(DataError, match="another base"):
        adapters.merged({"model.embed_tokens.weight": torch.zeros(2, 2)}, adapter, 1.0)
    weights = {f"{name.removesuffix('.a')}.weight": torch.zeros(3, 3) for name in adapter if name.endswith(".a")}
    with pytest.raises(DataError, match="belongs to another base"):
        adapters.merged(weights, adapter, 1.0)


def test_recipes_are_validated():
    with pytest.raises(ConfigError, match="batch_tokens"):
        ColdStart(batch_tokens=0)
