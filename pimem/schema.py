"""From mappings to frozen specifications and back: strict building, YAML, canonical hashes, field docstrings.

`build` refuses unknown keys and wrong types and names the nearest right key. Nothing is converted but whole numbers to floats.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from pimem.errors import ConfigError, nearest

T = TypeVar("T")


def build(cls: type[T], data: Any, where: str = "") -> T:
    """A frozen specification of type `cls` from a mapping, strictly.

    Nested dataclasses are built from nested mappings; a union of dataclasses is told apart by the field they share whose
    type is a one-value Literal. Integers pass as floats; nothing else is converted. Raises `ConfigError` that names
    the place and the nearest right key, and for numbers outside their range.
    """
    return typing.cast(T, build_any(cls, data, where or cls.__name__))


def build_any(kind: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _json(data, where)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, data, where)
    if origin in (typing.Union, types.UnionType):
        return _build_union(args, data, where)
    if origin is Literal:
        if any(data == a and type(data) is type(a) for a in args):
            return data
        names = [str(a) for a in args]
        raise ConfigError(f"{where}: {data!r} is not allowed; {nearest(str(data), names)}")
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise ConfigError(f"{where}: expected a list, got {_said(data)}")
        return tuple(build_any(args[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if origin is dict:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where}: expected a mapping, got {_said(data)}")
        return {str(k): build_any(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if kind is type(None) and data is None:
        return None
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        if not abs(data) < float("inf"):
            raise ConfigError(f"{where}: expected a finite number, got {_said(data)}")
        return float(data)
    if isinstance(kind, type) and isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise ConfigError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {_said(data)}")


def _build_dataclass(cls: Any, data: Any, where: str) -> Any:
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a mapping with the keys of {cls.__name__}, got {_said(data)}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(str(key), fields)}")
    required = [
        n
        for n, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and n not in data
    ]
    if required:
        raise ConfigError(f"{where}: {', '.join(required)} must be given")
    values = {k: build_any(hints[k], v, f"{where}.{k}") for k, v in data.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def _build_union(args: tuple[Any, ...], data: Any, where: str) -> Any:
    records = [a for a in args if dataclasses.is_dataclass(a)]
    if len(records) == 1 and isinstance(data, Mapping):
        return _build_dataclass(records[0], data, where)
    if records and isinstance(data, Mapping):
        tag, kinds = tagged(tuple(records))
        if tag not in data:
            raise ConfigError(f"{where}: the key {tag!r} must say which one; {nearest('', kinds)}")
        if not isinstance(data[tag], str) or data[tag] not in kinds:
            raise ConfigError(f"{where}.{tag}: unknown {tag} {data[tag]!r}; {nearest(str(data[tag]), kinds)}")
        return _build_dataclass(kinds[data[tag]], data, where)
    for kind in args:
        try:
            return build_any(kind, data, where)
        except ConfigError:
            continue
    wanted = " or ".join(getattr(a, "__name__", str(a)) for a in args)
    raise ConfigError(f"{where}: expected {wanted}, got {_said(data)}")


@functools.cache
def tagged(records: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    hints = {r: typing.get_type_hints(r) for r in records}
    for name in hints[records[0]]:
        values = {r: typing.get_args(h.get(name)) for r, h in hints.items()}
        if all(typing.get_origin(hints[r].get(name)) is Literal and len(v) == 1 for r, v in values.items()):
            return name, {v[0]: r for r, v in values.items()}
    raise TypeError(f"no field tells {records} apart")


def _json(data: Any, where: str) -> Any:
    """A copy of free-form data, refused where it is not JSON: it must have a hash and outlive its file."""
    if isinstance(data, Mapping):
        return {str(k): _json(v, f"{where}.{k}") for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_json(v, f"{where}[{i}]") for i, v in enumerate(data)]
    if isinstance(data, float) and not abs(data) < float("inf"):
        raise ConfigError(f"{where}: expected a finite number, got {_said(data)}")
    if data is None or isinstance(data, str | int | float):
        return data
    raise ConfigError(f"{where}: expected text, a number, a list or a mapping, got {_said(data)}; quote it if it is text")


def at_least(spec: Any, low: int, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        if not low <= value < float("inf"):
            wrong = "too little" if value < low else "no finite number"
            raise ConfigError(f"{name}: {value} is {wrong}; give at least {low}")


def check_share(spec: Any, name: str) -> None:
    if not 0 < getattr(spec, name) <= 1:
        raise ConfigError(f"{name}: {getattr(spec, name)} is no share; give a number above 0, at most 1")


def _said(data: Any) -> str:
    text = repr(data)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(data).__name__})"


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key stands once: of two, the first would be lost without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML mapping from a file.

    Raises `ConfigError` where it is missing, does not parse, has a key twice or holds something else.
    """
    path = Path(path)
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping, got {_said(data)}")
    return data


def as_dict(spec: Any) -> dict[str, Any]:
    """A specification as plain JSON types."""
    return json.loads(json.dumps(dataclasses.asdict(spec)))


def canonical_hash(value: Any, length: int = 12) -> str:
    """Hex digest of a specification or of JSON types: the same in every process, Python version and key order.

    A whole number counts the same whether it is written 1 or 1.0.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = as_dict(value)
    text = json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _whole(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, by field name."""
    docs: dict[str, str] = {}
    for base in cls.__bases__:
        docs |= field_docs(base) if dataclasses.is_dataclass(base) else {}
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, after in zip(body.body, body.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
