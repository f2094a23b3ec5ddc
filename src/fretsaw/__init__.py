"""fretsaw cuts a trained language model to fit its hardware, and puts back what the cut took."""

__version__ = "0.1.0"
