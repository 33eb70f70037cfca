"""Text to token ids and back, windows of ids, and where a stretch of text lies among them.

A context is tokenised once. Prompts are concatenations of separately tokenised parts (`pimem.prompts`): those ids are what is
meant, and text is for people. A window may cut a character or a merge in two; its ids stay right, and `decode` shows the
replacement character there.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pimem.errors import ConfigError, DataError
from pimem.records import Evidence

SEGMENT_CHARS = 1 << 16
"""Text is tokenised in segments of about this many characters, side by side in the tokenizer's own threads."""
PROBE_CHARS = 192
"""How much text on either side of a cut must tokenise the same with and without the cut."""
_TRIES = 16
"""Places to try for one cut; a tokenizer that refuses them all refuses nearly every other."""
_BATCH = 64

_WORD_END = re.compile(r"(?<=[^\W_])(?=\s)")
_BLANK = re.compile(r"\s")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A Hugging Face tokenizer with data and template kept apart.

    `encode` is for data: control tokens spelled out in it stay plain text, and no start or end token is added.
    `encode_template` is for our own prompt texts, in which control tokens are live.
    """

    def __init__(self, hf: Any, folder: Path | None = None):
        self.hf = hf
        self._folder = folder
        self._live = getattr(hf, "backend_tokenizer", None)
        if self._live is not None:
            self._inert = type(self._live).from_str(self._live.to_str())
            self._inert.encode_special_tokens = True
            self._inert.no_truncation()
            self._inert.no_padding()

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer in a local model folder. Raises `DataError` where there is none or it does not load."""
        from transformers import AutoTokenizer

        folder = Path(folder)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such model folder")
        try:
            return cls(AutoTokenizer.from_pretrained(folder, local_files_only=True), folder)
        except Exception as error:
            raise DataError(
                f"{folder}: no tokenizer could be loaded from this folder ({type(error).__name__}: {error}). "
                "It needs tokenizer.json and tokenizer_config.json beside config.json"
            ) from error

    @functools.cached_property
    def hash(self) -> str:
        """Hex digest of the vocabulary, merges, rules and chat template."""
        # Not the live one: its truncation, which nothing here uses, changes as it is called.
        rules = self._inert.to_str() if self._live is not None else json.dumps(self.hf.get_vocab(), sort_keys=True)
        return hashlib.sha256(f"{rules}\n{self.hf.chat_template}".encode()).hexdigest()[:16]

    @functools.cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a completion: the end token, and those the folder's generation_config.json adds.

        Raises `DataError` where that file does not parse.
        """
        ids = {self.hf.eos_token_id}
        path = self._folder / "generation_config.json" if self._folder else None
        if path and path.is_file():
            try:
                listed = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            except (ValueError, AttributeError) as error:
                raise DataError(f"{path}: not a generation configuration ({error}); repair it or delete it") from None
            ids |= set(listed if isinstance(listed, list) else [listed])
        return tuple(sorted(ids - {None}))

    def encode(self, text: str) -> np.ndarray:
        """Ids of data, uint32 of shape (tokens,); control tokens in it are inert.

        Raises `DataError` for half a surrogate pair.
        """
        _refuse_surrogates(text)
        if self._live is None:
            return _array(self.hf.encode(text, add_special_tokens=False, split_special_tokens=True))
        return _array(self._inert.encode(text, add_special_tokens=False).ids)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, side by side in the tokenizer's own threads."""
        for text in texts:
            _refuse_surrogates(text)
        if self._live is None:
            return [self.encode(text) for text in texts]
        return [_array(e.ids) for e in self._inert.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_template(self, text: str) -> np.ndarray:
        """Ids of our own text, in which control tokens are live."""
        return _array(self.hf.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids, control tokens spelled out; a character cut in two shows as U+FFFD."""
        ids = np.asarray(ids, dtype=np.uint32).tolist()
        if self._live is not None:
            return self._live.decode(ids, skip_special_tokens=False)
        return self.hf.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def response(self, ids: Sequence[int]) -> str:
        """The text of a response as every engine shows it: without control tokens, and without the beginning of a character
        whose rest never came."""
        text = self.hf.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.rstrip("\ufffd")

    def chat(self, messages: list[dict[str, str]], **template_args: Any) -> str:
        """Messages rendered by the model's chat template, ready for its answer.

        Raises `DataError` without a template, and where the template refuses the messages or its arguments.
        """
        where = self._folder or type(self.hf).__name__
        if not self.hf.chat_template:
            raise DataError(f"{where}: the tokenizer has no chat template, so no prompt can be rendered")
        try:
            return self.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template_args)
        except Exception as error:
            said = ", ".join(f"{m['role']} message" for m in messages)
            raise DataError(
                f"{where}: the chat template cannot render a {said} with the arguments {template_args} "
                f"({type(error).__name__}: {error}); change the prompt set or template_args"
            ) from error

    def encode_long(self, text: str) -> LongText:
        """Ids of a long text, equal to `encode(text)`, tokenised in segments over several threads.

        A segment ends only where a word ends and where the text around tokenises the same with and without the cut;
        tokenizers that offer no such place (those that put a mark before every text) get the text whole. Raises
        `DataError` as `encode` does.
        """
        _refuse_surrogates(text)
        starts = self._cuts(text) if self._live is not None and len(text) > SEGMENT_CHARS else [0]
        pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
        parts: list[np.ndarray] = []
        for at in range(0, len(pieces), _BATCH):
            batch = pieces[at : at + _BATCH]
            if self._live is None:
                parts += [self.encode(p) for p in batch]
            else:
                parts += [_array(e.ids) for e in self._inert.encode_batch_fast(batch, add_special_tokens=False)]
        token_starts = np.cumsum([0, *(len(p) for p in parts[:-1])])
        ids = np.concatenate(parts) if parts else _array([])
        return LongText(text, ids, self, starts, [int(t) for t in token_starts])

    def _cuts(self, text: str) -> list[int]:
        starts = [0]
        at = SEGMENT_CHARS
        while at < len(text):
            for match in itertools.islice(_WORD_END.finditer(text, at, at + SEGMENT_CHARS), _TRIES):
                if self._neutral(text, match.start()):
                    starts.append(match.start())
                    at = match.start()
                    break
            at += SEGMENT_CHARS
        return starts

    def _neutral(self, text: str, cut: int) -> bool:
        left, right = text[max(0, cut - PROBE_CHARS) : cut], text[cut : cut + PROBE_CHARS]
        # Runs longer than the probe (of letters before the cut, of blanks after it) could split otherwise in full.
        if not right.strip() or not _BLANK.search(left):
            return False
        whole = self.encode(left + right)
        return np.array_equal(whole, np.concatenate([self.encode(left), self.encode(right)]))


def _refuse_surrogates(text: str) -> None:
    if found := _SURROGATE.search(text):
        raise DataError(
            f"character {found.start():,} of the text is half a surrogate pair ({found[0]!r}), which is no text; "
            "read the text again with the encoding it was written in"
        )


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, dtype=np.uint32)


@dataclass
class LongText:
    """A tokenised text that still knows which characters its tokens came from."""

    text: str
    ids: np.ndarray
    """uint32, shape (tokens,)."""
    tokenizer: Tokenizer
    char_starts: list[int]
    token_starts: list[int]
    _offsets: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The token range [first, last) that covers the characters [start, end); empty where no token holds any of them.

        Raises `ValueError` for an empty range or one outside the text.
        """
        if not 0 <= start < end <= len(self.text):
            raise ValueError(f"characters [{start}, {end}) do not lie in a text of {len(self.text)}")
        first, base, _, ends = self._segment(start)
        first_token = base + int(np.searchsorted(ends, start - first, side="right"))
        last, base, starts, _ = self._segment(end - 1)
        return first_token, base + int(np.searchsorted(starts, end - last, side="left"))

    def char(self, token: int) -> int:
        """The character at which a token begins. Raises `ValueError` for a token outside the text."""
        if not 0 <= token < len(self.ids):
            raise ValueError(f"token {token} does not lie in a text of {len(self.ids)} tokens")
        at = bisect.bisect_right(self.token_starts, token) - 1
        first, base, starts, _ = self._segment(self.char_starts[at])
        return first + int(starts[token - base])

    def _segment(self, char: int) -> tuple[int, int, np.ndarray, np.ndarray]:
        """The segment a character lies in: its first character and token, and its tokens' character starts and ends."""
        at = bisect.bisect_right(self.char_starts, char) - 1
        if at not in self._offsets:
            stop = self.char_starts[at + 1] if at + 1 < len(self.char_starts) else len(self.text)
            piece = self.text[self.char_starts[at] : stop]
            if self.tokenizer._live is not None:
                offsets = np.array(self.tokenizer._inert.encode(piece, add_special_tokens=False).offsets).reshape(-1, 2)
                starts, ends = offsets[:, 0], offsets[:, 1]
            else:
                ends = np.array([len(self.tokenizer.decode(self.ids[:n])) for n in range(1, len(self.ids) + 1)])
                starts = np.concatenate([[0], ends[:-1]])
            self._offsets[at] = np.maximum.accumulate(starts), np.maximum.accumulate(ends)
        return self.char_starts[at], self.token_starts[at], *self._offsets[at]


def windows(tokens: int, size: int) -> list[tuple[int, int]]:
    """Equal, contiguous windows [start, end) over `tokens` token ids; the last may be shorter; none for no tokens.

    Raises `ConfigError` for a size below one.
    """
    if size < 1:
        raise ConfigError(f"chunk_tokens: a window of {size} tokens is not possible; give at least 1")
    return [(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def holding(spans: Sequence[tuple[int, int]], evidence: Sequence[Evidence]) -> set[int]:
    """Indices of the windows in which a piece of evidence lies, at least in part."""
    return {i for i, (start, end) in enumerate(spans) if any(e.start < end and e.end > start for e in evidence)}


def digest(ids: np.ndarray) -> str:
    """Hex digest of token ids; names a prompt or a chunk in traces and journals."""
    return hashlib.sha256(np.ascontiguousarray(ids, dtype="<u4").data).hexdigest()[:16]
