"""The root of Headrace's error tree."""


class HeadraceError(Exception):
    """An expected failure: the message says what was expected, what came, and what to do."""
