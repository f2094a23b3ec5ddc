"""Seconds of each stage of a round, from parts that were measured on this machine.

How often each part is run follows the stages: each block, on so many sequences, with what is
repaired, judged or learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fretsaw.core.precision import AUTO
from fretsaw.core.shape import Block, ModelShape
from fretsaw.core.variant import Variant
from fretsaw.pricing.memory import model_costs
from fretsaw.runtime.gauge import Repaired
from fretsaw.runtime.repair import RepairSettings
from fretsaw.stages.outline import Outline, by_mixer, largest, typical
from fretsaw.stages.samples import NEW_TOKENS, PROMPTS
from fretsaw.train.plan import DistillSettings
from fretsaw.train.probe import probe_steps

ROUNDED = 1.35
"""A pass in which weights, inputs and cache are rounded, of one without (demo's parent)."""

LINEAR_KINDS = {"mamba": 1, "attention": 1, "mlp": 1, "moe": 3}
"""Kinds of weights that ``auto`` measures alone, in two formats each."""

EVALUATIONS = DistillSettings.evaluations

TRIALS = 4
"""Of the learning-rate probe: three at least, six at most."""


@dataclass(frozen=True)
class Durations:
    """How long the stages of a round take, in seconds."""

    outline: Outline

    def open(self, shape: ModelShape) -> float:
        """Of a checkpoint as a running model."""
        machine, whole = self.outline.machine, model_costs(self.outline.parent)["params"]
        return machine.open_s * model_costs(shape)["params"] / whole

    def calibrate(self) -> float:
        """A pass over the text that statistics are fitted on."""
        o, fit = self.outline, self.outline.settings.calibrate
        batch, length = min(o.batch, fit.sequences), fit.sequence_length
        gauge = o.machine.gauge
        seen = o.each(o.shape.blocks, lambda b: gauge.observe(b, sequences=batch, length=length))
        return self.open(o.shape) + seen * fit.sequences / batch

    def rank(self) -> float:
        """The model is opened; what is done with its weights takes less."""
        return self.open(self.outline.shape)

    def score(self) -> float:
        """Each variant in its place, and all blocks after it."""
        o, judge = self.outline, self.outline.settings.score
        length = o.settings.calibrate.sequence_length
        seconds = self.open(o.shape) + 2 * self._forward(
            o.shape.blocks, judge.sequences, length=length
        )
        for index, variants in o.changing.items():
            after = o.shape.blocks[index + 1 :]
            for start in range(0, len(variants), judge.variants_per_pass):
                group = variants[start : start + judge.variants_per_pass]
                seconds += self._pass(group, after, length=length)
        return seconds + self._repairs(o.changing)

    def search(self) -> float:
        """The program, and every choice measured in the running model."""
        o, judge = self.outline, self.outline.settings.score
        length = o.settings.calibrate.sequence_length
        head = self._judge(judge.sequences, length=length)
        seconds = self.open(o.shape) + o.solve_s + head
        seconds += self._forward(o.shape.blocks, judge.sequences, length=length)
        children = [block for c in o.choices for block in c.child_shape(o.shape).blocks]
        seconds += len(o.choices) * head
        seconds += self._forward(children, judge.sequences, length=length)
        return seconds + self._repairs(o.taken(o.choices))

    def build(self) -> float:
        """Repairs of what was chosen; the writing itself is short beside them."""
        taken = self.outline.taken(self.outline.choices[:1])
        return self.open(self.outline.shape) + self._repairs(taken)

    def distill(self) -> float:
        """Probe, training, evaluations, and the text samples at the end."""
        o, heal = self.outline, self.outline.settings.distill
        steps = -(-heal.tokens // (heal.batch_size * heal.sequence_length))
        is_probed = heal.learning_rate == "auto" and probe_steps(steps) > 0
        trials = TRIALS if is_probed else 0
        learned = steps + trials * probe_steps(steps)
        evaluations = 1 + trials + min(heal.evaluations, steps)
        opened = self.open(o.parent) + self.open(o.child)
        return (
            opened + learned * self._step() + evaluations * self._evaluation() + self._teacher()
        ) + self._samples()

    def quantize(self, to: str) -> float:
        """Calibration, ``auto``'s measurements, healing under rounding, and the comparisons."""
        o, judge = self.outline, self.outline.settings.score
        heal, tokens = o.settings.distill, o.recipe.quantize.heal_tokens
        steps = -(-tokens // (heal.batch_size * heal.sequence_length))
        is_probed = o.recipe.quantize.learning_rate == "auto"
        trials = TRIALS if steps and is_probed and probe_steps(steps) > 0 else 0
        learned = steps + trials * probe_steps(steps)
        evaluations = 2 + (1 + trials + min(EVALUATIONS, steps) if steps else 0)
        seconds = self.calibrate() + 2 * self._teacher() + 2 * self.open(o.child)
        seconds += ROUNDED * (learned * self._step() + evaluations * self._evaluation())
        if to == AUTO:
            length = o.settings.calibrate.sequence_length
            once = self._forward(o.child.blocks, judge.sequences, length=length)
            places = sum(LINEAR_KINDS.get(block.mixer, 0) for block in o.child.blocks)
            seconds += 2 * places * (once + self._judge(judge.sequences, length=length))
        return seconds

    def _pass(self, group: Sequence[Variant], after: Sequence[Block], *, length: int) -> float:
        """Variants of a block, and as one batch all blocks after it."""
        o, judge = self.outline, self.outline.settings.score
        batch, size = min(o.batch, judge.sequences), judge.variants_per_pass
        gauge = o.machine.gauge
        forms = [v.apply(o.shape.blocks[v.block]) for v in group]
        own = o.each(forms, lambda b: gauge.forward(b, sequences=batch, length=length))
        wide = o.each(after, lambda b: gauge.forward(b, sequences=size * batch, length=length))
        judged = len(group) * self._judge(judge.sequences, length=length)
        return (own + wide * len(group) / size) * judge.sequences / batch + judged

    def _forward(self, blocks: Sequence[Block], sequences: int, *, length: int) -> float:
        """Some blocks on that many sequences, a recipe's batch at a time."""
        o, batch = self.outline, min(sequences, self.outline.batch)
        gauge = o.machine.gauge
        each = o.each(blocks, lambda b: gauge.forward(b, sequences=batch, length=length))
        return each * sequences / batch

    def _judge(self, sequences: int, *, length: int) -> float:
        batch = min(sequences, self.outline.batch)
        one = self.outline.machine.gauge.judge(sequences=batch, length=length)
        return one * sequences / batch

    def _repairs(self, taken: Mapping[int, Sequence[Variant]]) -> float:
        """Of these variants of each block, and of the walk through the network."""
        o = self.outline
        library, length = o.settings.library, o.settings.calibrate.sequence_length
        if library.repair == "none" or not taken:
            return 0.0
        seconds = self._forward(o.shape.blocks, library.repair_sequences, length=length)
        forms = {
            i: [v.apply(o.shape.blocks[i]) for v in vs if not v.is_none] for i, vs in taken.items()
        }
        forms = {i: found for i, found in forms.items() if found}
        for alike in by_mixer(b for found in forms.values() for b in found).values():
            if alike[0].mixer == "attention":
                continue
            cut = [i for i, found in forms.items() if found[0].mixer == alike[0].mixer]
            full = largest([o.shape.blocks[i] for i in cut])
            repaired = self._repair(full, typical(alike))
            prepared = sum(len({b.settings.get("top_k") for b in forms[i]}) for i in cut)
            seconds += len(alike) * repaired.each_s + prepared * repaired.prepare_s
        return seconds

    def _repair(self, full: Block, small: Block) -> Repaired:
        o, library = self.outline, self.outline.settings.library
        settings = RepairSettings(kind=library.repair, batch_sequences=o.batch)
        return o.machine.gauge.repair(
            full,
            small,
            sequences=library.repair_sequences,
            length=o.settings.calibrate.sequence_length,
            settings=settings,
        )

    def _step(self) -> float:
        """A training step: the student's blocks and the teacher's, both heads, AdamW."""
        o, heal = self.outline, self.outline.settings.distill
        gauge, head = o.machine.gauge, o.machine.head
        sequences, length = heal.batch_size, heal.sequence_length
        student = o.each(
            o.child.blocks, lambda b: gauge.learn(b, sequences=sequences, length=length).seconds
        )
        teacher = o.each(
            o.parent.blocks, lambda b: gauge.forward(b, sequences=sequences, length=length)
        )
        heads = gauge.once(
            ("heads", sequences, length), lambda: head.learn(sequences=sequences, length=length)
        )
        each_s = gauge.once("optimise", head.optimise)
        return student + teacher + heads + model_costs(o.child)["params"] * each_s

    def _evaluation(self) -> float:
        """The student on held-out text."""
        o, length = self.outline, self.outline.held_out_length
        head = o.machine.gauge.once(
            ("compare", length), lambda: o.machine.head.compare(sequences=1, length=length)
        )
        return self._held_out(o.child, head)

    def _teacher(self) -> float:
        """The teacher on held-out text, once."""
        o, length = self.outline, self.outline.held_out_length
        head = o.machine.gauge.once(
            ("refer", length), lambda: o.machine.head.refer(sequences=1, length=length)
        )
        return self._held_out(o.parent, head)

    def _held_out(self, shape: ModelShape, head: float) -> float:
        o, heal = self.outline, self.outline.settings.distill
        gauge, length = o.machine.gauge, o.held_out_length
        blocks = o.each(
            shape.blocks, lambda b: gauge.forward(b, sequences=heal.batch_size, length=length)
        )
        return heal.validation_sequences * (blocks / heal.batch_size + head)

    def _samples(self) -> float:
        """What both models say, a token at a time."""
        o, gauge = self.outline, self.outline.machine.gauge
        both = [
            o.each(shape.blocks, lambda b: gauge.forward(b, sequences=PROMPTS, length=1))
            for shape in (o.parent, o.child)
        ]
        return NEW_TOKENS * sum(both)
