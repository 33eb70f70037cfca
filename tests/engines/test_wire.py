"""Frames: whole, cut short, out of step."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.engines.wire import pack, receive
from pimem.errors import EngineError


async def read(data: bytes) -> list[Any]:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    frames = []
    while (frame := await receive(stream)) is not None:
        frames.append(frame)
    return frames


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.text()), st.lists(st.integers(0, 2**32 - 1))), max_size=4))
def test_frames_come_back_as_they_went(sent: list[Any]) -> None:
    data = b"".join(pack(message, np.array(ids, dtype=np.uint32)) for message, ids in sent)
    frames = asyncio.run(read(data))
    assert [(message, ids.tolist()) for message, ids in frames] == sent


async def test_a_frame_cut_short_is_the_end() -> None:
    data = pack({"op": "done"}, np.arange(9, dtype=np.uint32))
    for cut in range(len(data)):
        assert await read(data[:cut]) == []


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<II", 1 << 30, 0),
        struct.pack("<II", 2, 3) + b"{}abc",
        struct.pack("<II", 3, 0) + b"{{{",
        struct.pack("<II", 2, 0) + b"[]",
        struct.pack("<II", 2, 0) + b"\xff\xff",
    ],
)
async def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(EngineError, match="out of step"):
        await read(data)


def test_numbers_that_json_does_not_know_are_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pack({"logprob": float("nan")})
