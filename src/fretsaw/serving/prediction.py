"""What the prices say of a choice, beside what was asked."""

from __future__ import annotations

from dataclasses import dataclass

from fretsaw.core.units import format_bytes, format_count, format_latency


@dataclass(frozen=True)
class Prediction:
    """A demand and what the prices say of a choice.

    Attributes:
        demand: What was asked.
        layout: Under which it is met.
        in_flight: Requests on the node.
        token_s: Time of a token; None where only memory counts, as with what follows from it.
        token_limit_s: The longest that was allowed.
        server_tokens_per_s: With so many in flight, each user no slower than was asked.
        parent_server_tokens_per_s: Of the original parent at its best in the same terms.
        speedup: One over the other.
        asked_speedup: If that was the demand.
        joules_per_token: If they were bounded, modelled.
        gpu_bytes: Memory of one GPU.
        usable_bytes: What it has.
    """

    demand: str
    layout: str
    in_flight: float
    token_s: float | None
    token_limit_s: float | None
    server_tokens_per_s: float | None
    parent_server_tokens_per_s: float | None
    speedup: float | None
    asked_speedup: float | None
    joules_per_token: float | None
    gpu_bytes: int
    usable_bytes: int

    def told(self) -> str:
        """In words: ``asked 1.3x, predicted 1.31x: ...``."""
        if self.token_s is None or self.server_tokens_per_s is None:
            used, usable = format_bytes(self.gpu_bytes), format_bytes(self.usable_bytes)
            return f"{self.demand}: {used} of {usable} ({self.layout})"
        rate = f"{format_count(self.server_tokens_per_s)} server tokens/s"
        if self.speedup is not None:
            rate = f"predicted {self.speedup:.3g}x, {rate}"
        if self.asked_speedup is not None:
            rate = f"asked {self.asked_speedup:.3g}x, {rate}"
        return (
            f"{self.demand}: {rate} ({self.layout}, {format_count(self.in_flight)} in flight, "
            f"{format_latency(self.token_s)} a token)"
        )
