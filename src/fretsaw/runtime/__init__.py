"""The running model: transformers' own modules, opened, viewed block by block, and saved."""
