"""Parts of ``train_tiny.py``, which makes the embedded model; nothing here needs ``headrace``."""
