"""Frames between an engine and its worker process over a local stream socket.

A frame is two little-endian uint32 lengths in bytes, a JSON object, and raw token ids (uint32, little-endian). No pickle:
what arrives can be wrong, never executed.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import numpy as np

from pimem.errors import EngineError

_HEAD = struct.Struct("<II")
MOST = 1 << 28
"""Longest header or payload in bytes that is believed; more means the stream is out of step."""
_NO_IDS = np.empty(0, dtype="<u4")


def pack(message: dict[str, Any], ids: np.ndarray | None = None) -> bytes:
    """One frame."""
    header = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    payload = np.ascontiguousarray(_NO_IDS if ids is None else ids, dtype="<u4").tobytes()
    return _HEAD.pack(len(header), len(payload)) + header + payload


async def receive(stream: asyncio.StreamReader) -> tuple[dict[str, Any], np.ndarray] | None:
    """The next frame's object and ids (uint32, shape (tokens,)); None where the other side is gone.

    Raises `EngineError` for bytes that are no frame.
    """
    try:
        header_size, payload_size = _HEAD.unpack(await stream.readexactly(_HEAD.size))
        if header_size > MOST or payload_size > MOST or payload_size % 4:
            raise EngineError(
                f"worker stream out of step: frame of {header_size:,} and {payload_size:,} bytes", retryable=False
            )
        header = await stream.readexactly(header_size)
        payload = await stream.readexactly(payload_size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    try:
        message = json.loads(header)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise EngineError("worker stream out of step: a frame's header is not a JSON object", retryable=False)
    return message, np.frombuffer(payload, dtype="<u4").astype(np.uint32)
