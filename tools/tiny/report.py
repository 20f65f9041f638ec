"""The loss curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CURVES = {
    "text": ("training text", "tab:blue", "-"),
    "mtp": ("MTP, training text", "tab:gray", "-"),
    "grammar": ("held-out grammar", "tab:green", "o"),
    "books": ("held-out books", "tab:red", "o"),
}


def plot_losses(history: Sequence[dict[str, float]], file: Path) -> None:
    """Draw every curve of ``history`` against the step; held-out figures as points."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for key, (label, colour, style) in CURVES.items():
        points = [(entry["step"], entry[key]) for entry in history if key in entry]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=1)
    axes.set(xlabel="step", ylabel="loss [nats/token]", yscale="log")
    axes.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)
