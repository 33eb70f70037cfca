"""Judges a trained model call by call on held-out examples: one record an example, and a table of means by case.

`python -m pimem.training.judge CONFIG --model FOLDER --data FOLDER --out FOLDER` judges plain weights on eval.xz.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pimem import scoring
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training.data import Table
from pimem.training.recipe import ColdStart, load_config
from pimem.training.teacher import NO, YES
from pimem.workflows import gru_mem, rememr1
from pimem.workflows.pi_mem import parse_check

_BATCH = 256
_BATCH_TOKENS = 300_000


def generate(model: Any, prompts: Sequence[np.ndarray], tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """Greedy responses to prompts of token ids, in their order, end token left out."""
    device = next(model.parameters()).device
    out = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    at = 0
    while at < len(order):
        n = 1
        while n < _BATCH and at + n < len(order) and (n + 1) * len(prompts[order[at + n]]) <= _BATCH_TOKENS:
            n += 1
        rows, at = order[at : at + n], at + n
        width = max(len(prompts[i]) for i in rows)
        ids = np.zeros((n, width), dtype=np.int64)
        mask = np.zeros((n, width), dtype=np.int64)
        for row, i in enumerate(rows):
            ids[row, width - len(prompts[i]) :] = prompts[i]
            mask[row, width - len(prompts[i]) :] = 1
        with torch.inference_mode():
            made = model.generate(
                input_ids=torch.from_numpy(ids).to(device),
                attention_mask=torch.from_numpy(mask).to(device),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=list(tokenizer.stop_ids),
                pad_token_id=tokenizer.stop_ids[0],
            )
        for row, i in enumerate(rows):
            new = made[row, width:].tolist()
            end = next((k for k, token in enumerate(new) if token in tokenizer.stop_ids), len(new))
            out[i] = tokenizer.decode(np.array(new[:end], dtype=np.uint32)) if end else ""
    return out


def refusals(model: Any, prompts: Sequence[np.ndarray], tokenizer: Tokenizer) -> list[bool]:
    """Whether the greedy response to each prompt begins with the whole no tag, from one pass each."""
    device = next(model.parameters()).device
    tag = tokenizer.encode(NO)
    out = [False] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for at in range(0, len(order), 128):
        rows = order[at : at + 128]
        width = max(len(prompts[i]) for i in rows) + len(tag)
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for row, i in enumerate(rows):
            ids[row, : len(prompts[i]) + len(tag)] = np.concatenate([prompts[i], tag])
        places = np.array([np.arange(len(prompts[i]) - 1, len(prompts[i]) - 1 + len(tag)) for i in rows])
        with torch.inference_mode():
            hidden = model.model(input_ids=torch.from_numpy(ids).to(device), use_cache=False).last_hidden_state
            chosen = hidden.gather(1, torch.from_numpy(places).to(device)[:, :, None].expand(-1, -1, hidden.shape[-1]))
            best = model.lm_head(chosen).argmax(-1).cpu().numpy()
        for row, i in enumerate(rows):
            out[i] = bool((best[row] == tag).all())
    return out


def read_scores(response: str, facts: Sequence[str]) -> dict[str, float]:
    """check: decided rightly; format: the tag first; copied: share of the gold lines, verbatim; exact: all and no others."""
    wanted = "yes" if facts else "no"
    lines = response.strip().split("\n")
    scores = {
        "check": float(parse_check(response) == wanted),
        "format": float((lines[0] == YES and len(lines) > 1) or response.strip() == NO),
    }
    if facts:
        scores |= {"copied": sum(f in lines for f in facts) / len(facts), "exact": float(lines[1:] == list(facts))}
    return scores


def notes_scores(response: str, facts: Sequence[str]) -> dict[str, float]:
    """kept: share of the facts that stand in the notes as lines; exact: those lines and no others; extra: other lines."""
    lines = response.strip().split("\n")
    extra = sum(line not in facts for line in lines) if facts else 0
    kept = sum(f in lines for f in facts) / len(facts) if facts else float(lines == ["(empty)"])
    return {"kept": kept, "exact": float(kept == 1 and extra == 0), "extra": float(extra)}


def gated_scores(response: str, target: str, facts: Sequence[str]) -> dict[str, float]:
    """format: GRU-Mem's; check, exit: both gates as the teacher has them, wrong without the format; the rest of its notes.

    The notes count where the update gate should be open, as they are discarded elsewhere.
    """
    said, wanted = gru_mem.parse_step(response), gru_mem.parse_step(target)
    assert wanted is not None
    scores = {
        "format": float(said is not None),
        "check": float(said is not None and said.update == wanted.update),
        "exit": float(said is not None and said.end == wanted.end),
    }
    if wanted.update:
        scores |= notes_scores(said.candidate if said else "", facts)
    return scores


def recall_scores(response: str, target: str, facts: Sequence[str]) -> dict[str, float]:
    """format: ReMemR1's; query: asks for what the teacher asks for, or for nothing where it does; the rest of its notes."""
    said, wanted = rememr1.parse_step(response), rememr1.parse_step(target)
    scores = {"format": float(said.well_formed), "query": float(said.well_formed and said.query == wanted.query)}
    return scores | notes_scores(said.memory or "", facts)


def answer_scores(response: str, target: str, several: bool, accepted: Sequence[str] = ()) -> dict[str, float]:
    """boxed: in the form asked for; em, sub_em: against the target's box; recall: share of its values, where `several`.

    Where the target is one of the `accepted` answers, any of them is right.
    """
    said, wanted = scoring.extract(response, "boxed"), scoring.extract(target, "boxed") or ""
    right = list(accepted) if wanted in accepted and not several else [wanted]
    scores = {
        "boxed": float(said is not None),
        "em": scoring.exact_match(said, right),
        "sub_em": scoring.sub_em(said, right),
    }
    if several:
        scores["recall"] = scoring.multi_recall(said, re.split(r", (?=\S)", wanted))
    return scores


def retention(
    model: Any, tokenizer: Tokenizer, table: Table, rows: Sequence[int], config: ColdStart, max_tokens: int
) -> list[str]:
    """The memories after all sections of each row, read one after the other by the model itself."""
    prompts = PromptSet.load(config.prompts)
    template = prompts.template("update", tokenizer, {})
    memories = [prompts.empty_memory] * len(rows)
    for step in range(len(table.meta[rows[0]]["sections"])):
        asked = [
            template.fill(
                question=tokenizer.encode(table.meta[i]["question"].strip()),
                memory=tokenizer.encode(memory),
                chunk=np.array(table.meta[i]["sections"][step], dtype=np.uint32),
            )
            for i, memory in zip(rows, memories, strict=True)
        ]
        made = generate(model, asked, tokenizer, max_tokens)
        memories = [text.strip() or prompts.empty_memory for text in made]
    return memories


def judge(
    model: Any, tokenizer: Tokenizer, table: Table, config: ColdStart, rows: Sequence[int], max_tokens: int = 224
) -> list[dict[str, Any]]:
    """One record an example, all of one case: case, source, scores, response and what the teacher would have said.

    Right refusals of random sections keep neither.
    """
    case = table.cases[rows[0]]
    prompts = [table.ids[table.starts[i] : table.starts[i] + table.prompts[i]].astype(np.uint32) for i in rows]
    targets = [tokenizer.decode(table.ids[table.starts[i] + table.prompts[i] : table.starts[i + 1] - 1]) for i in rows]
    # One row that rambles would hold up its whole batch: a little more than the longest right response is enough to judge.
    longest = max(int(table.starts[i + 1] - table.starts[i] - table.prompts[i]) for i in rows)
    room = min(max_tokens, longest + 24)
    if case == "random":
        refused = refusals(model, prompts, tokenizer)
        asked = [at for at, no in enumerate(refused) if not no]
        said = [NO] * len(rows)
        for at, text in zip(asked, generate(model, [prompts[at] for at in asked], tokenizer, 64), strict=True):
            said[at] = text
    elif case.endswith("retention"):
        said = retention(model, tokenizer, table, rows, config, max_tokens)
    else:
        said = generate(model, prompts, tokenizer, room)
    records = []
    for i, target, response in zip(rows, targets, said, strict=True):
        facts = table.meta[i]["facts"]
        if ": final" in case or case.endswith(("answer", "retrieved")):
            scores = answer_scores(response, target, case.startswith("needles"), table.meta[i]["answers"])
        elif ": gated" in case:
            scores = gated_scores(response, target, facts)
        elif ": recall" in case:
            scores = recall_scores(response, target, facts)
        elif case.endswith(("merge", "retention", "update")):
            scores = notes_scores(response, facts)
        else:
            scores = read_scores(response, facts)
        record = {"case": case, "source": table.meta[i]["source"], "prompt_tokens": int(table.prompts[i]), "scores": scores}
        if not (case == "random" and scores["check"] == 1):
            record |= {"target": target, "response": response}
        records.append(record)
    return records


def summary(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean of every score by case, and n."""
    cases: dict[str, list[dict[str, float]]] = {}
    for record in records:
        cases.setdefault(record["case"], []).append(record["scores"])
    out = {}
    for case, scores in cases.items():
        names = sorted({name for s in scores for name in s})
        means = {name: round(float(np.mean([s[name] for s in scores if name in s])), 4) for name in names}
        out[case] = {"n": len(scores), **means}
    return out


def write(
    model: Any,
    tokenizer: Tokenizer,
    table: Table,
    config: ColdStart,
    folder: Path,
    name: str = "eval",
    most: int | None = None,
    only: Sequence[str] | None = None,
) -> None:
    """Judges case by case, the first `most` examples of each (of those named in `only`), and prints each case's means.

    Writes `<name>.jsonl` as it goes and `<name>.json` at the end.
    """
    rows: dict[str, list[int]] = {}
    for i, case in enumerate(table.cases):
        if only is None or case in only:
            rows.setdefault(case, []).append(i)
    folder.mkdir(parents=True, exist_ok=True)
    means: dict[str, dict[str, float]] = {}
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for of in rows.values():
            records = judge(model, tokenizer, table, config, of[:most])
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            file.flush()
            means |= summary(records)
            case = records[0]["case"]
            print(f"{case:42}", *(f"{k} {v}" for k, v in means[case].items()), flush=True)
    (folder / f"{name}.json").write_text(json.dumps(means, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Judges a model folder."""
    from pimem.training import cold_start

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder of plain weights")
    parser.add_argument("--data", type=Path, required=True, help="folder with eval.xz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, help="examples of a case")
    parser.add_argument("--only", nargs="+", help="these cases and no others")
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = cold_start.load(args.model, device, torch.bfloat16 if device == "cuda" else torch.float32).eval()
    table, config = Table.load(args.data / "eval.xz"), load_config(args.config)
    write(model, Tokenizer.load(args.model), table, config, args.out, most=args.most, only=args.only)


if __name__ == "__main__":
    main()
