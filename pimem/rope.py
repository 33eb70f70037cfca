"""Windows beyond the one a model was made for: YaRN, or positions that simply go on.

Both are written into a copy of the model's config.json, in a folder whose other files are links, because that is where every
engine reads them. Releases of vLLM differ in what they multiply: some take the original window times the factor, later ones
the window that stands in the configuration. All three numbers are written, and they agree. An engine that has started is
asked what it really runs with (`check`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pimem.config import ModelSpec, canonical_hash
from pimem.errors import ConfigError, DataError, EngineError
from pimem.packages import arriving, home

PLAIN = frozenset({"default", "mrope"})
"""Kinds of rotary position that are not scaled."""


@dataclass(frozen=True)
class Positions:
    """How a configuration's model counts positions."""

    kind: str
    """default, yarn, linear, ..., or none where it has no rotary positions."""
    factor: float
    """What the scaling multiplies the original window by; 1 without scaling."""
    original: int | None
    """Tokens of the window before scaling; None where the configuration does not say."""
    window: int | None
    """Tokens of the effective window."""


def positions(config: Mapping[str, Any]) -> Positions:
    """The positions of a config.json, as a mapping. Raises `ValueError` where they make no sense."""
    config = config.get("text_config") or config
    window = config.get("max_position_embeddings")
    window = window if isinstance(window, int) else None
    rope = _rope(config)
    if not rope and not any(name in config for name in ("rope_theta", "rope_parameters", "rope_scaling")):
        return Positions("none", 1.0, window, window)
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind != "yarn":
        return Positions(kind, 1.0, window, window)
    factor = float(rope.get("factor", 1))
    if "original_max_position_embeddings" not in rope and window is None:
        return Positions(kind, factor, None, None)
    named: Any = rope.get("original_max_position_embeddings", window)
    original = int(named)
    if not factor >= 1 or original < 1:
        raise ValueError(f"yarn with factor {factor} over {original} tokens")
    return Positions(kind, factor, original, max(window or 0, int(original * factor)))


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"rope parameters that are no mapping: {rope!r}")
    if rope and all(isinstance(v, Mapping) for v in rope.values()):
        # One set a kind of layer; those that see everything bound the window.
        rope = rope.get("full_attention", {})
    return dict(rope)


def extended(folder: Path, model: ModelSpec) -> Path:
    """The model in `folder` with the window that `model.yarn` or `model.beyond` gives it; the folder itself where neither does.

    The weights are links. Raises `ConfigError` for a model whose positions cannot be extended so, `DataError` where the copy
    cannot be written.
    """
    if model.yarn == 1 and not model.beyond:
        return folder
    source = folder / "config.json"
    config = json.loads(source.read_text(encoding="utf-8"))
    changed = scaled(config, model) if model.yarn > 1 else beyond(config, model)
    if changed == config:
        return folder
    identity = {"from": str(folder.resolve()), "config": changed, "files": sorted(p.name for p in folder.iterdir())}
    target = home() / "extended" / f"{folder.name}-{canonical_hash(identity, 16)}"
    # Whole by its rename; that its links still lead somewhere is all there is to check.
    with arriving(target, 1_000_000, lambda: _broken(target), lambda line: None) as work:
        if work is not None:
            for path in folder.iterdir():
                if path.name not in ("config.json", "pimem.json"):
                    os.symlink(path.resolve(), work / path.name)
            (work / "config.json").write_text(json.dumps(changed, indent=2) + "\n", encoding="utf-8")
    return target


def _broken(target: Path) -> str | None:
    gone = [path for path in target.iterdir() if not path.exists()]
    return f"{gone[0]}: leads nowhere, its model has moved" if gone else None


def scaled(config: Mapping[str, Any], model: ModelSpec) -> dict[str, Any]:
    """A configuration with YaRN by `model.yarn`. Raises `ConfigError` where the model's positions do not allow it."""
    have = _positions(config)
    if have.kind == "yarn" and have.factor == model.yarn:
        original = have.original
    elif have.kind in PLAIN:
        original = have.window
    elif have.kind == "none":
        raise ConfigError(f"model.yarn: {model.path} has no rotary positions, which are what YaRN scales; take the factor away")
    else:
        raise ConfigError(
            f"model.yarn: {model.path} already scales its positions ({have.kind}, factor {have.factor:g}); give that factor "
            "if it is yarn, or take ours away"
        )
    if original is None:
        raise ConfigError(f"model.yarn: {model.path} does not say how long its own window is, so nothing can be multiplied")
    out = json.loads(json.dumps(config))
    text = out.get("text_config") or out
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if rope and all(isinstance(v, Mapping) for v in rope.values()):
        raise ConfigError(
            f"model.yarn: {model.path} has other positions in other layers; YaRN by one factor is not defined for it"
        )
    key = "rope_parameters" if text.get("rope_parameters") else "rope_scaling"
    kept = {k: v for k, v in rope.items() if k != "type"}
    text[key] = kept | {"rope_type": "yarn", "factor": float(model.yarn), "original_max_position_embeddings": original}
    text["max_position_embeddings"] = int(original * model.yarn)
    return out


def beyond(config: Mapping[str, Any], model: ModelSpec) -> dict[str, Any]:
    """A configuration that declares `model.window` where it is longer. Raises `ConfigError` where positions end."""
    have = _positions(config)
    if have.kind not in PLAIN:
        what = "has no rotary positions" if have.kind == "none" else f"scales its positions ({have.kind})"
        raise ConfigError(f"model.beyond: {model.path} {what}, so they do not go on beyond its window; take it away")
    out = json.loads(json.dumps(config))
    text = out.get("text_config") or out
    text["max_position_embeddings"] = max(model.window, have.window or 0)
    return out


def _positions(config: Mapping[str, Any]) -> Positions:
    """`positions`, where a configuration that leaves its rotary base to the architecture's default counts as rotary."""
    have = positions(config)
    if have.kind == "none":
        from transformers import CONFIG_MAPPING

        kind = (config.get("text_config") or config).get("model_type")
        if kind in CONFIG_MAPPING and getattr(CONFIG_MAPPING[kind](), "rope_parameters", None):
            return replace(have, kind="default")
    return have


def check(model: ModelSpec, said: Mapping[str, Any]) -> None:
    """Compares what was asked with what a started engine reads back: `window`, `rope` and `rope_factor`.

    `said["window"]` is the engine's effective length. Raises `EngineError`, not retryable, where it is shorter than
    `model.window` or where the positions are not scaled as asked.
    """
    window, kind, factor = said.get("window"), said.get("rope"), said.get("rope_factor")
    if not isinstance(window, int) or window < model.window:
        raise EngineError(
            f"model.window: {model.window:,} tokens were asked for and the engine runs with {window}; "
            "ask for no more, or extend the model with model.yarn",
            retryable=False,
        )
    if model.yarn > 1 and (kind != "yarn" or factor != model.yarn):
        raise EngineError(
            f"model.yarn: a factor of {model.yarn:g} was asked for and the engine runs with positions {kind!r}"
            f"{f', factor {factor:g}' if factor else ''}; it does not read the scaling of this kind of model",
            retryable=False,
        )


def read_back(config: Any) -> dict[str, Any]:
    """`window`, `rope` and `rope_factor` of a configuration object that an engine has loaded.

    Raises `DataError` where it makes no sense.
    """
    names = ("max_position_embeddings", "rope_parameters", "rope_theta")
    fields = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    try:
        have = positions(fields)
    except (TypeError, ValueError) as error:
        raise DataError(f"the loaded model's positions make no sense ({error})") from None
    return {"window": have.window, "rope": have.kind, "rope_factor": have.factor}
