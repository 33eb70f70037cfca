"""How long it takes to tokenise a context of millions of tokens and cut it into windows, and whether the event loop notices.

    python experiments/bench_tokenise.py [--tokens 3600000] [--chunk 5000] [--check]

The text is HotpotQA's own paragraphs, as the long-context task lays them out; the tokenizer is the default model's. Needs
`pimem data fetch hotpotqa` and `pimem models fetch smollm2-135m`. `--check` also tokenises the text in one piece and
compares every id.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time

os.environ["TOKENIZERS_PARALLELISM"] = "true"

from pimem import data, models
from pimem.config import ModelSpec
from pimem.tokens import LongText, Tokenizer, windows

TICK = 0.005


def paragraphs(tokens: int, tokenizer: Tokenizer) -> str:
    """Numbered documents of the corpus, about `tokens` tokens of them; the corpus is repeated should it be too small."""
    texts = [f"Document {i + 1}:\n{p.title}\n{p.text}" for i, p in enumerate(data.corpus("hotpotqa").paragraphs)]
    sample = "\n\n".join(texts[:500])
    per_character = len(tokenizer.encode(sample)) / len(sample)
    whole = "\n\n".join(texts)
    characters = int(tokens / per_character)
    return (whole * (characters // len(whole) + 1))[:characters]


async def longest_gap(done: asyncio.Event) -> float:
    """Longest time, in seconds, by which a task that sleeps `TICK` woke late."""
    worst = 0.0
    while not done.is_set():
        before = time.perf_counter()
        await asyncio.sleep(TICK)
        worst = max(worst, time.perf_counter() - before - TICK)
    return worst


async def measure(text: str, tokenizer: Tokenizer, chunk: int) -> tuple[LongText, int, float, float, float]:
    """The tokenised text, its number of windows, the wall and processor seconds of both, and the loop's longest gap."""

    def work() -> tuple[LongText, int]:
        long = tokenizer.encode_long(text)
        return long, len([long.ids[a:b] for a, b in windows(len(long.ids), chunk)])

    done = asyncio.Event()
    ticker = asyncio.create_task(longest_gap(done))
    started, worked = time.perf_counter(), time.process_time()
    long, count = await asyncio.to_thread(work)
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    done.set()
    return long, count, seconds, worked, await ticker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=3_600_000)
    parser.add_argument("--chunk", type=int, default=5_000)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    tokenizer = Tokenizer.load(models.resolve(ModelSpec(path="smollm2-135m")))
    text = paragraphs(args.tokens, tokenizer)
    long, count, seconds, worked, gap = asyncio.run(measure(text, tokenizer, args.chunk))
    print(
        f"{len(text):,} characters -> {len(long.ids):,} tokens in {count:,} windows of {args.chunk:,}: {seconds:.2f} s "
        f"({worked:.2f} s of processor), "
        f"{len(long.ids) / seconds:,.0f} tokens/s on {len(os.sched_getaffinity(0))} cores, "
        f"{len(long.char_starts):,} segments; longest gap of the event loop {gap * 1000:.0f} ms"
    )
    if args.check:
        started = time.perf_counter()
        equal = bool((tokenizer.encode(text) == long.ids).all())
        print(f"tokenised in one piece: {time.perf_counter() - started:.2f} s, {'the same ids' if equal else 'OTHER IDS'}")
        if not equal:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
