"""Building an engine by name."""

from __future__ import annotations

import sys

import pytest

from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import build
from pimem.errors import ConfigError, EngineError


async def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown engine 'transformer'; did you mean 'transformers'"):
        await build(EngineSpec(kind="transformer"), ModelSpec())


async def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pimem.engines.openai_api", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(EngineError, match="engine openai_api needs the package httpx, which is not installed") as failure:
        await build(EngineSpec(kind="openai_api"), ModelSpec())
    assert not failure.value.retryable


async def test_scripted_starts_without_a_model() -> None:
    engine = await build(EngineSpec(kind="scripted", seed=3), ModelSpec(window=500))
    assert engine.info.window == 500
    await engine.close()
