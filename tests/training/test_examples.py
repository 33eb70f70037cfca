"""The examples of the cold start over a small corpus: what each case says is what the workflows would send and make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimem import data as fetched
from pimem.config import GruMemSpec, MemAgentSpec, PiMemSpec, ReMemR1Spec, SamplingSpec
from pimem.corpora import Corpus
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training import data
from pimem.training.examples import Builder
from pimem.training.recipe import ColdStart
from pimem.training.scenes import Source
from pimem.workflows import base
from pimem.workflows.gru_mem import parse_step as gates
from pimem.workflows.pi_mem import parse_check
from pimem.workflows.rememr1 import parse_step as parts

PROMPTS = PromptSet.load("trained")
METHODS = ("pi_mem", "mem_agent", "gru_mem", "rememr1")
SPECS = {"pi_mem": PiMemSpec(), "mem_agent": MemAgentSpec(), "gru_mem": GruMemSpec(), "rememr1": ReMemR1Spec()}


def short(rng: np.random.Generator) -> int:
    return int(rng.integers(150, 500))


@pytest.fixture(scope="module", autouse=True)
def home(question_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The small question set and a few sentences as essays, in force."""
    folder = tmp_path_factory.mktemp("examples_home")
    essays = folder / "essays.txt"
    essays.write_text(" ".join(f"Thought {n} is worth a walk. Is it? It is!" for n in range(40)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(folder))
        fetched.fetch("hotpotqa", question_home / "dev.json", report=lambda line: None)
        fetched.fetch("essays", essays, report=lambda line: None)
        yield


@pytest.fixture(scope="module")
def corpus(home: None) -> Corpus:
    return fetched.corpus("hotpotqa")


@pytest.fixture(scope="module")
def builder(tiny: Tokenizer, corpus: Corpus) -> Builder:
    return Builder(Source(tiny, corpus, "train", 5), PROMPTS, short)


@pytest.fixture(scope="module")
def made(builder: Builder) -> list[Any]:
    return list(data.examples(builder, 400, METHODS))


def text(builder: Builder, example: Any) -> str:
    return builder.tokenizer.decode(example.response[:-1])


def notes_of(builder: Builder, example: Any, heading: str = "Notes:\n") -> list[str]:
    prompt = builder.tokenizer.decode(example.prompt)
    return prompt.split(heading, 1)[1].split("\n\n", 1)[0].split("\n")


def test_every_method_gets_the_same_number_of_tokens(made: list[Any]) -> None:
    spent: Counter[str] = Counter()
    for example in made:
        spent[example.method] += len(example.prompt) + len(example.response)
    longest = max(len(e.prompt) + len(e.response) for e in made)
    assert set(spent) == set(METHODS)
    assert max(spent.values()) - min(spent.values()) <= longest


def test_only_the_methods_asked_for_are_trained(builder: Builder) -> None:
    alone = list(data.examples(builder, 40, ["mem_agent"]))
    assert {e.method for e in alone} == {"mem_agent"}
    assert not any(e.case.split(": ")[-1].startswith(("gold", "none", "gated", "recall")) for e in alone)


def test_prompts_are_those_of_the_workflows(builder: Builder, made: list[Any]) -> None:
    """Every prompt begins and ends with the static ids of one of its method's templates."""
    phases = {
        "pi_mem": ("read", "read_cached", "read_all", "read_all_cached", "merge", "final"),
        "mem_agent": ("update", "final"),
        "gru_mem": ("gated_update", "final"),
        "rememr1": ("recall_update", "recall_final"),
    }
    for method, spec in SPECS.items():
        workflow = base.build(spec, PROMPTS, builder.tokenizer, 1 << 15, SamplingSpec())
        pieces = [workflow.template(phase).pieces for phase in (*phases[method], "answer", "retrieved")]
        for example in (e for e in made if e.method == method):
            ends = [
                np.array_equal(example.prompt[: len(p[0])], p[0]) and np.array_equal(example.prompt[-len(p[-1]) :], p[-1])
                for p in pieces
            ]
            assert any(ends), example.case


def test_responses_end_once_and_keep_their_form(builder: Builder, made: list[Any]) -> None:
    end = builder.tokenizer.hf.eos_token_id
    for example in made:
        said, case = text(builder, example), example.case
        assert list(example.response).count(end) == 1
        assert example.response[-1] == end
        if ": gated" in case:
            assert gates(said) is not None
        elif ": recall" in case:
            assert parts(said).well_formed
        elif ": final" in case or case.endswith(("answer", "retrieved")):
            assert said.startswith("\\boxed{")
        elif "gold" in case or "none" in case or case == "random":
            assert parse_check(said) == ("yes" if example.facts else "no")


def test_reads_list_what_the_section_states_and_the_notes_lack(builder: Builder, made: list[Any]) -> None:
    reads = [e for e in made if e.method == "pi_mem" and ": gold" in e.case]
    assert len(reads) > 10
    for example in reads:
        notes = notes_of(builder, example)
        assert not set(example.facts) & set(notes), example.case
        assert (example.facts == ()) == example.case.endswith("known") or example.case.endswith("rest known")


def test_gates_say_what_the_notes_and_the_section_hold(builder: Builder, made: list[Any]) -> None:
    steps = [e for e in made if ": gated" in e.case]
    seen = set()
    for example in steps:
        step = gates(text(builder, example))
        assert step is not None
        notes = [n for n in notes_of(builder, example) if n != PROMPTS.empty_memory]
        candidate = [n for n in step.candidate.split("\n") if n != PROMPTS.empty_memory]
        assert candidate[: len(notes)] == notes
        assert step.update == (len(candidate) > len(notes))
        seen.add((step.update, step.end))
    assert len(seen) == 4


def test_recalled_lines_come_back_into_the_notes(builder: Builder) -> None:
    cases = Counter()
    for example in (builder.recall("chain") for _ in range(200)):
        step = parts(text(builder, example))
        notes, recalled = notes_of(builder, example), notes_of(builder, example, "Recalled:\n")
        assert step.memory is not None
        after = step.memory.split("\n")
        if "restores" in example.case:
            assert set(recalled) & (set(after) - set(notes))
        if step.query:
            assert step.query in example.question + "".join(after)
        cases[example.case.split(": ")[1]] += 1
    assert {"recall none", "recall none, asks", "recall restores", "recall shown"} <= set(cases)


def test_unknown_is_said_only_where_the_notes_hold_no_gold_fact(builder: Builder) -> None:
    unknown = 0
    for kind in ("hotpotqa", "needles", "planted", "chain"):
        for example in (builder.final(kind) for _ in range(150)):
            said = text(builder, example)
            assert (said == "\\boxed{unknown}") == ("nothing known" in example.case)
            unknown += "nothing known" in example.case
            if kind != "hotpotqa" and "nothing known" not in example.case:
                memory = "\n".join(notes_of(builder, example)).lower()
                parts_said = said.removeprefix("\\boxed{").removesuffix("}").split(", ")
                assert all(a.lower() in memory for a in parts_said), (kind, said)
    assert 10 < unknown < 60


def test_facts_that_nothing_leads_to_are_not_trained_on_alone(builder: Builder) -> None:
    for example in (builder.read("chain", "none") for _ in range(60)):
        assert "nothing leads to it" not in example.case


def test_held_out_cases_name_them(tiny: Tokenizer, corpus: Corpus) -> None:
    held_out = Builder(Source(tiny, corpus, "eval", 5), PROMPTS, short)
    config = ColdStart(methods=METHODS, eval_cases=12, eval_negatives=3, eval_section=300)
    cases = Counter(e.case for e in data.evaluation(held_out, config))
    assert cases["chain: gold, nothing leads to it"] > 0
    assert cases["random"] == 3
    assert {"hotpotqa: update", "hotpotqa: final", "hotpotqa: final with recall", "needles: retention"} <= set(cases)
    assert any(case.startswith("hotpotqa: gated") for case in cases)
    assert not any("nothing known" in case for case in cases)


def test_the_same_seed_makes_the_same_examples(tiny: Tokenizer, corpus: Corpus) -> None:
    def first(seed: int) -> list[bytes]:
        again = Builder(Source(tiny, corpus, "train", seed), PROMPTS, short)
        return [e.prompt.tobytes() + e.response.tobytes() for e in islice(data.examples(again, 20, METHODS), 20)]

    assert first(1) == first(1)
    assert first(1) != first(2)
