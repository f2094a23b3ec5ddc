"""Serving: how fast and how many, predicted from costs and measured in engines."""
