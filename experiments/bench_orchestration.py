"""How fast everything but the model is: PI-Mem over the scripted engine at zero latency, with and without the store.

    python experiments/bench_orchestration.py [--samples 64] [--chunks 720] [--chunk-tokens 5000] [--profile]

Two turns: every read of turn 1 and none of turn 2 finds something in one chunk of a hundred. Prints calls, seconds,
seconds of processor time, calls a second and the peak of resident memory, and then the same figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pimem.config import Execution, ModelSpec, PiMemSpec, RunSpec, SamplingSpec, TaskSpec
from pimem.engines.scripted import Scripted
from pimem.evaluation import evaluate
from pimem.prompts import PromptSet
from pimem.records import CallKey, Sample
from pimem.tokens import Tokenizer
from pimem.workflows.base import SampleRecorder, build

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def byte_tokenizer() -> Tokenizer:
    """A token a byte: enough to compile prompts with."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|im_start|>", "<|im_end|>"]
    vocab = {token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    fast = Fast(models.BPE(vocab=vocab, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(special)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=special[1], chat_template=TEMPLATE))


class Noise:
    """Samples of random token ids."""

    data_hash = "noise"

    def __init__(self, tokens: int):
        self.tokens = tokens

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        for i in range(start, start + n):
            ids = np.random.default_rng(i).integers(2, 258, self.tokens, dtype=np.uint32)
            yield Sample(f"noise-{i}", f"noise-{i}", "What is hidden in the noise?", ("nothing",), ids)


def script(key: CallKey, prompt: np.ndarray) -> str:
    if key.phase == "read":
        found = key.turn == 1 and key.index % 100 == 0
        return f"<check>yes</check> fact {key.index} of {key.sample}" if found else "<check>no</check>"
    return r"\boxed{nothing}" if key.phase == "final" else f"notes of turn {key.turn}"


async def measure(args: argparse.Namespace, root: Path | None) -> dict[str, float]:
    spec = PiMemSpec(chunk_tokens=args.chunk_tokens)
    window = args.chunk_tokens + 8192
    run = RunSpec(spec, ModelSpec(window=window), TaskSpec("noise", args.chunks * args.chunk_tokens), SamplingSpec())
    workflow = build(spec, PromptSet.load("default"), byte_tokenizer(), window, run.sampling)
    task = Noise(args.chunks * args.chunk_tokens)
    engine = Scripted(script, window)
    began, cpu = time.perf_counter(), time.process_time()
    if root is None:
        for sample in task.samples(args.samples):
            await workflow.run(sample.question, sample.context_ids, engine, SampleRecorder(sample.id))
    else:
        execution = Execution(inflight_tokens=max(4_000_000, 2 * args.chunks * args.chunk_tokens))
        store = await evaluate(
            run, args.samples, engine=engine, execution=execution, root=root, task=task, workflow=workflow, weights="scripted"
        )
        assert len(store.outcomes) == args.samples
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "calls": engine.calls,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "calls_per_s": round(engine.calls / seconds),
        "peak_gib": round(peak, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=720)
    parser.add_argument("--chunk-tokens", type=int, default=5000)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, with the store")
    parser.add_argument("--part", choices=["with store", "without store"], help="measure this alone")
    args = parser.parse_args()
    if args.part is None:
        # One process each, since a peak of memory never falls.
        for part in ("without store", "with store"):
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--part", part], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) if args.part == "with store" else None
        if args.profile and root:
            import cProfile
            import pstats

            with cProfile.Profile() as profile:
                figures = asyncio.run(measure(args, root))
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        else:
            figures = asyncio.run(measure(args, root))
        if root:
            figures["store_gib"] = round(sum(p.stat().st_size for p in root.rglob("*") if p.is_file()) / 2**30, 3)
    print(f"{args.part}: " + ", ".join(f"{name} {value:,}" for name, value in figures.items()))
    print(json.dumps({"part": args.part, **figures}))


if __name__ == "__main__":
    main()
