"""Bytes on disk: lazy reading, ordering and slicing along named axes, streamed writing."""
