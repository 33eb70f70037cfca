"""Examples of the cold start: the exact prompt ids a workflow would send, and the response the teacher would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pimem.training import teacher
from pimem.training.documents import Scene
from pimem.training.drafts import DOCUMENTS, Drafts, Example
from pimem.training.teacher import Placed

NOTHING, PARTIAL = 0.05, 0.12
"""Shares of final answers trained with notes that hold nothing of use, and with notes that may lack a fact."""


@dataclass
class Step:
    """What a recurrent step finds and should make of it."""

    scene: Scene
    chunk: np.ndarray
    notes: list[str]
    """Lines of the memory before it."""
    new: list[str]
    """Lines the section adds."""
    lost: list[Placed]
    """Gold facts in neither."""


class Builder(Drafts):
    """Writes examples of every case over one part of the data."""

    def read(self, kind: str, memory: str, size: int | None = None, order: str | None = None) -> Example:
        """A read of a section with gold facts; `memory` none, partial or known says what of them the notes hold already."""
        while True:
            want = size or self.lengths(self.rng)
            scene = self.scene(kind, want)
            if not scene.gold:
                continue
            about = scene.gold[int(self.rng.integers(len(scene.gold)))]
            window = self._over(scene, about, want)
            seen = self._seen(scene, window)
            if not seen and (memory != "none" or self.source.part == "train"):
                continue
            clear = any(fact.clear for fact, _ in seen)
            if memory == "none" and seen and not clear and self.source.part == "train":
                # Nothing shows yet that these facts matter. PI-Mem finds them once the notes hold those that lead to them, and
                # to train either decision here would be to train guessing.
                continue
            lines = [line for _, line in seen]
            hidden = [f.line for f in [*scene.gold, *scene.elsewhere] if f not in [f for f, _ in seen]]
            known: list[str] = []
            new = lines
            if memory == "partial":
                known = [line for line in hidden if self.rng.random() < 0.9]
                if len(seen) > 1 and self.rng.random() < 0.4:
                    cut = int(self.rng.integers(1, len(seen)))
                    known += [f.line for f, _ in seen[:cut]]
                    new = lines[cut:]
                if not known:
                    continue
            elif memory == "known":
                known = [f.line for f, _ in seen] + [line for line in hidden if self.rng.random() < 0.5]
                new = []
            said = {"none": "gold", "partial": "gold, rest known", "known": "gold known"}[memory]
            said = "gold, nothing leads to it" if memory == "none" and not clear else said
            case = f"{kind}: {said if seen else 'cut'}"
            return self._read(case, scene, window, known, new, order)

    def _read(
        self, case: str, scene: Scene, window: tuple[int, int], known: list[str], new: list[str], order: str | None = None
    ) -> Example:
        rng = self.rng
        if known:
            if rng.random() < 0.15:
                known = [*known, self._near_noise(scene)]
            known = [known[i] for i in rng.permutation(len(known))]
        memory = "\n".join(known) or self._empty
        chunk = self._chunk(scene, window)
        phase = order or ("read" if rng.random() < 0.55 else "read_cached")
        return self._example(case, phase, teacher.read(new), scene, new, memory=memory, chunk=chunk)

    def nothing(self, kind: str, size: int | None = None, empty: bool = False, order: str | None = None) -> Example:
        """A read of a section without gold facts: the question's own distractors, other keys' needles, or anything else.

        To an unanswerable question the section is laid over its paragraph as over a fact.
        """
        want = size or self.lengths(self.rng)
        scene = self.scene(kind, want, without=True)
        close = self._near(scene) if kind != "random" else None
        window = (
            self._over(scene, Placed("", *close), want)
            if close and scene.kind == "unanswerable"
            else self._window(scene, want, close)
        )
        known = []
        if not empty and self.rng.random() < 0.55:
            known = [f.line for f in scene.elsewhere if self.rng.random() < 0.85]
        return self._read(f"{kind}: none" if kind != "random" else "random", scene, window, known, [], order)

    def read_all(self, kind: str) -> Example:
        made = self.scene(kind, size := self.lengths(self.rng), without=bool(self.rng.random() < 0.4))
        window = self._window(made, size, (made.gold[0].start, made.gold[0].end) if made.gold else None)
        lines = [line for _, line in self._seen(made, window)]
        phase = "read_all" if self.rng.random() < 0.7 else "read_all_cached"
        response = teacher.read_all(lines, self._empty)
        return self._example("read_all", phase, response, made, lines, memory=self._empty, chunk=made.context[slice(*window)])

    def _facts(self, kind: str) -> tuple[Scene, list[str]]:
        """A scene and all of its gold lines, now and then without the heading, as a cut section leaves them."""
        while True:
            scene = self.scene(kind, 300)
            lines = [f.line if self.rng.random() < 0.95 else f.text for f in [*scene.gold, *scene.elsewhere]]
            if lines or scene.kind == "unanswerable":
                return scene, list(dict.fromkeys(lines))

    def merge(self, kind: str) -> Example:
        """Observations of sections, some repeating the notes or each other, some about something else."""
        rng = self.rng
        scene, facts = self._facts(kind)
        if rng.random() < 0.15:
            facts = facts[: int(rng.integers(0, len(facts)))]
        split = rng.random(len(facts)) < (0.5 if rng.random() < 0.65 else 0)
        memory = [f for f, held in zip(facts, split, strict=True) if held]
        observed = [[f] for f, held in zip(facts, split, strict=True) if not held]
        observed += [[f] for f in facts if rng.random() < 0.2]
        noise = int(rng.choice([0, 1, 2, int(rng.integers(3, 9))], p=[0.5, 0.2, 0.15, 0.15]))
        observed += [[self._near_noise(scene)] for _ in range(noise)]
        if not observed:
            observed = [[facts[0]]] if facts else [[self._noise()]]
        observed = [observed[i] for i in rng.permutation(len(observed))]
        if len(observed) > 1 and rng.random() < 0.3:
            observed = [[*observed[0], *observed[1]], *observed[2:]]
        labels = sorted(rng.choice(int(10 ** rng.uniform(1.3, 3.3)), size=len(observed), replace=False) + 1)
        shown: list[np.ndarray] = []
        for label, lines in zip(labels, observed, strict=True):
            text = self.prompts.labelled(str(label), teacher.read(list(dict.fromkeys(lines))))
            shown += [self.tokenizer.encode("\n\n"), self.tokenizer.encode(text)]
        response = teacher.merge(memory, observed, set(facts), self._empty)
        notes = "\n".join(memory) or self._empty
        return self._example(
            f"{kind}: merge", "merge", response, scene, facts, memory=notes, observations=np.concatenate(shown[1:])
        )

    def _step(self, kind: str, size: int | None = None) -> Step:
        """A section for a recurrent step, with the notes on those before it."""
        rng, want = self.rng, size or self.lengths(self.rng)
        scene = self.scene(kind, want, without=bool(rng.random() < 0.5))
        about = scene.gold[int(rng.integers(len(scene.gold)))] if scene.gold else None
        window = self._over(scene, about, want) if about else self._window(scene, want, self._near(scene))
        seen = self._seen(scene, window)
        rest = [f for f in [*scene.gold, *scene.elsewhere] if f not in [f for f, _ in seen]]
        held = {group for group in sorted({f.group for f in rest}) if rng.random() < 0.5}
        known = [f for f in rest if f.group in held] + [f for f, _ in seen if rng.random() < 0.2]
        new = [(f, line) for f, line in seen if f not in known]
        lost = [f for f in rest if f not in known]
        notes = [f.line for f in known]
        if notes and rng.random() < 0.15:
            notes.append(self._near_noise(scene))
        notes = [notes[i] for i in rng.permutation(len(notes))]
        return Step(scene, self._chunk(scene, window), notes, [line for _, line in new], lost)

    def update(self, kind: str, size: int | None = None) -> Example:
        """MemAgent's step: the notes again, with what the section adds."""
        step = self._step(kind, size)
        lines = [*step.notes, *step.new]
        memory = teacher.notes(step.notes, self._empty)
        response = teacher.notes(lines, self._empty)
        return self._example(f"{kind}: update", "update", response, step.scene, lines, memory=memory, chunk=step.chunk)

    def gated(self, kind: str, size: int | None = None) -> Example:
        """GRU-Mem's step: whether the section adds something, the notes with it, and whether they hold every fact."""
        step = self._step(kind, size)
        lines = [*step.notes, *step.new]
        memory = teacher.notes(step.notes, self._empty)
        end = not step.lost and not step.scene.open
        response = teacher.gated(bool(step.new), teacher.notes(lines, self._empty), end)
        case = f"{kind}: gated {'yes' if step.new else 'no'}, {'end' if end else 'continue'}"
        return self._example(case, "gated_update", response, step.scene, lines, memory=memory, chunk=step.chunk)

    def recall(self, kind: str, size: int | None = None) -> Example:
        """ReMemR1's step: the notes again, with what the section and the recalled notes add, and what to recall next."""
        rng, step = self.rng, self._step(kind, size)
        recalled, back = self._recalled(step.scene, step.notes, step.lost)
        lines = [*step.notes, *(f.line for f in back), *step.new]
        lost = [f for f in step.lost if f not in back]
        memory = teacher.notes(step.notes, self._empty)
        query = None if step.scene.open else teacher.missing(lost, step.scene.question, "\n".join(lines))
        response = teacher.recalling(teacher.notes(lines, self._empty), query)
        case = f"{kind}: recall {'restores' if back else 'shown' if recalled else 'none'}{', asks' if query else ''}"
        shown = teacher.notes([recalled[i] for i in rng.permutation(len(recalled))], self.prompts.empty_recall)
        return self._example(
            case, "recall_update", response, step.scene, lines, recalled=shown, memory=memory, chunk=step.chunk
        )

    def _recalled(self, scene: Scene, notes: Sequence[str], lost: Sequence[Placed]) -> tuple[list[str], list[Placed]]:
        """Lines of an earlier memory, and the lost facts among them: none, some of the notes, or what has been lost too."""
        rng = self.rng
        if rng.random() < (0.45 if notes else 0.85):
            return [], []
        groups = sorted({f.group for f in lost})
        chosen = (
            set(rng.permutation(groups)[: int(rng.integers(1, len(groups) + 1))]) if groups and rng.random() < 0.7 else set()
        )
        back = [f for f in lost if f.group in chosen]
        lines = [line for line in notes if rng.random() < 0.5] + [f.line for f in back]
        if lines and rng.random() < 0.15:
            lines.append(self._near_noise(scene))
        return lines, back

    def final(self, kind: str, recall: bool = False) -> Example:
        """The answer from notes: `unknown` where nothing in them bears on the question, and nowhere else.

        Notes that lack a fact are only trained on where they state the answer all the same. `recall`: part of them may stand
        in a recalled memory, as ReMemR1 has it.
        """
        rng = self.rng
        scene, facts = self._facts(kind)
        answers = list(scene.answers)
        lines = [facts[i] for i in rng.permutation(len(facts))] if rng.random() < 0.5 else facts
        case, draw = f"{kind}: final", rng.random()
        if self.source.part == "train" and draw < NOTHING and lines:
            lines, answers = [], []
            case += ", nothing known"
        elif self.source.part == "train" and draw < NOTHING + PARTIAL:
            some = [line for line in lines if rng.random() < 0.5]
            if kind not in DOCUMENTS or any(answers[0] in line for line in some):
                left = answers if kind in DOCUMENTS else [a for a in answers if any(a in line for line in some)]
                lines, answers = (some, left) if left else (lines, answers)
        if self.source.part == "train" and rng.random() < (0.5 if not lines else 0.25):
            lines = [*lines, *(self._near_noise(scene) for _ in range(int(rng.integers(1, 4))))]
            lines = [lines[i] for i in rng.permutation(len(lines))]
        if kind in DOCUMENTS:
            answers = answers[:1]
        else:
            answers = sorted(answers, key=lambda a: next((i for i, line in enumerate(lines) if a in line), 0))
        if not recall:
            return self._example(case, "final", teacher.box(answers), scene, lines, memory=teacher.notes(lines, self._empty))
        split = rng.random(len(lines)) < (0.3 if rng.random() < 0.3 else 0)
        notes = [line for line, away in zip(lines, split, strict=True) if not away]
        recalled = [line for line, away in zip(lines, split, strict=True) if away]
        if rng.random() < 0.35:
            recalled += [line for line in notes if rng.random() < 0.6]
        shown = teacher.notes(recalled, self.prompts.empty_recall)
        memory = teacher.notes(notes, self._empty)
        if not any(split):
            answers = sorted(answers, key=lambda a: next((i for i, line in enumerate(notes) if a in line), 0))
        return self._example(
            f"{case} with recall", "recall_final", teacher.box(answers), scene, lines, recalled=shown, memory=memory
        )

    def direct(self, kind: str) -> Example:
        """The answer from the text itself, whole or as retrieved passages."""
        size = self.lengths(self.rng)
        without = bool(self.rng.random() < 0.15)
        scene = self.scene(kind, size, without)
        context = scene.context
        if kind in DOCUMENTS or kind == "chain":
            about = (scene.gold[0].start, scene.gold[-1].end) if scene.gold else self._near(scene) if scene.open else None
            window = self._window(scene, min(size, len(context)), about)
            seen = [f for f, _ in self._seen(scene, window)]
            whole = len(seen) == len(scene.gold) and not scene.elsewhere
            answered = whole or any(f.answer for f in seen)
            answers = scene.answers[:1] if answered else ()
            context = context[slice(*window)]
        else:
            answers = tuple(a for f, a in zip(sorted(scene.gold, key=lambda f: f.start), self._in_order(scene), strict=True))
        phase = "answer" if self.rng.random() < 0.6 else "retrieved"
        return self._example(f"{kind}: {phase}", phase, teacher.box(answers), scene, (), context=context)

    def _in_order(self, scene: Scene) -> list[str]:
        return [next(a for a in scene.answers if a in f.text) for f in sorted(scene.gold, key=lambda f: f.start)]

    def retention(self, kind: str, size: int = 500, steps: int = 5) -> Example:
        """Gold in the first of several sections, the rest from elsewhere: what a recurrent memory still holds at the end."""
        while True:
            scene = self.scene(kind, size)
            window = self._window(scene, size, (scene.gold[0].start, scene.gold[0].end))
            seen = [line for _, line in self._seen(scene, window)]
            if seen:
                break
        sections = [scene.context[slice(*window)]]
        while len(sections) < steps:
            other = self.scene("random", size)
            sections.append(other.context[slice(*self._window(other, size, None))])
        made = self._example(f"{kind}: retention", "update", teacher.notes(seen, self._empty), scene, seen,
                             memory=self._empty, chunk=sections[0])  # fmt: skip
        made.sections = tuple(sections)
        return made
