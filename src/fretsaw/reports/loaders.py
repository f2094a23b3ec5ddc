"""Who can load a checkpoint: the page beside it, from the data on engines' limits."""

from __future__ import annotations

from collections.abc import Sequence

from fretsaw.core.compatibility import Finding, Loader
from fretsaw.core.precision import LINEAR, Precision
from fretsaw.core.units import format_bytes

HEAD = """# Who can load this

For weights in {formats};
made by fretsaw from its tables of engine limits. *tried*: small models of this kind were loaded in
the version given; *read*: its code says so. Anything else is not known, which is not the same as
fine.

| engine | version looked at | loads | known because | needs | said against it |
|---|---|---|---|---|---|
"""

UNTIED = """
The head has {size} of weights of its own. The parent tied it to the embedding; transformers and
vLLM tie none for this family, whatever config.json says.
"""

OPENING = """
## In Python

Run in this folder, or with its path for `"."`:

```python
{snippet}
```
"""

PROMPT = "The history of the city begins"
UNCLAMPED = """\
for module in model.modules():  # transformers 5.15 to 5.24 clamp Mamba's time step in prefill only
    if hasattr(module, "time_step_limit"):
        module.time_step_limit = (0.0, float("inf"))"""


def loaders_page(
    loaders: Sequence[Loader],
    *,
    precision: Precision,
    needs_code: bool,
    has_tokenizer: bool,
    untied_bytes: int = 0,
) -> str:
    """The page as Markdown.

    Args:
        loaders: One row per engine.
        precision: Number formats that the rows hold for.
        needs_code: Whether transformers needs the two files beside the weights.
        has_tokenizer: Whether the folder brings a tokenizer.
        untied_bytes: Of the head, if the parent tied it to the embedding; 0 if it did not.
    """
    sources = sorted({f.source for row in loaders for f in row.findings if f.source})
    rows = "".join(_row(row, sources) for row in loaders)
    snippet = opening_snippet(".", needs_code=needs_code, has_tokenizer=has_tokenizer)
    notes = "".join(f"{i}. {source}\n" for i, source in enumerate(sources, start=1))
    return (
        HEAD.format(formats=formats_in_words(precision))
        + rows
        + (UNTIED.format(size=format_bytes(untied_bytes)) if untied_bytes else "")
        + OPENING.format(snippet=snippet)
        + (f"\n## Sources\n\n{notes}" if notes else "")
    )


def formats_in_words(precision: Precision) -> str:
    """Such as ``nvfp4 (experts), fp8 (shared experts, mamba projection), bf16 (all others)``."""
    kinds: dict[str, list[str]] = {}
    for kind, number_format in precision.weights.items():
        if kind in LINEAR and number_format != precision.default:
            kinds.setdefault(number_format, []).append(kind.replace("_", " "))
    if not kinds:
        return precision.default
    said = [f"{number_format} ({', '.join(found)})" for number_format, found in kinds.items()]
    own = "; blocks with formats of their own" if precision.blocks else ""
    return ", ".join([*said, f"{precision.default} (all others)"]) + own


def opening_snippet(folder: str, *, needs_code: bool, has_tokenizer: bool) -> str:
    """Python that opens a checkpoint with plain transformers, and asks nobody anything.

    Args:
        folder: As Python shall find it.
        needs_code: Whether the folder's own code is needed. The tokenizer is then told so too: it
            reads the config first, and would wait for an answer at the keyboard.
        has_tokenizer: Whether the folder brings one.
    """
    trust = ", trust_remote_code=True" if needs_code else ""
    names = "AutoModelForCausalLM" + (", AutoTokenizer" if has_tokenizer else "")
    lines = [
        f"from transformers import {names}",
        "",
        f"model = AutoModelForCausalLM.from_pretrained({folder!r}{trust})",
    ]
    lines += [] if needs_code else [UNCLAMPED]
    if has_tokenizer:
        lines += [
            f"tokenizer = AutoTokenizer.from_pretrained({folder!r}{trust})",
            f"prompt = tokenizer({PROMPT!r}, return_tensors='pt')",
            "print(tokenizer.decode(model.generate(prompt['input_ids'], max_new_tokens=16)[0]))",
        ]
    return "\n".join(lines)


def loader_in_words(row: Loader) -> str:
    """A row in one line: the verdict, how it is known and what it needs, or why not."""
    if row.verdict == "no":
        return f"{row.engine}: no; {str(row.findings[0]).removeprefix(f'{row.engine}: ')}"
    known = f" ({row.evidence})" if row.evidence else ""
    return f"{row.engine}: {row.verdict}{known}" + (f"; needs {row.needs}" if row.needs else "")


def _row(row: Loader, sources: Sequence[str]) -> str:
    against = "; ".join(_said(finding, sources) for finding in row.findings)
    cells = (row.engine, row.checked, row.verdict, row.evidence, row.needs, against)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _said(finding: Finding, sources: Sequence[str]) -> str:
    text = str(finding).removeprefix(f"{finding.engine}: ")
    return f"{text} [{sources.index(finding.source) + 1}]" if finding.source else text
