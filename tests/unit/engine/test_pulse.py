"""Beats come from a thread of their own until the pulse is closed."""

from __future__ import annotations

from pathlib import Path

from headrace.core.codec import Codec
from headrace.core.messages import Heartbeat, RankInfo
from headrace.engine.pulse import Pulse
from headrace.transfer.control import ControlSocket

KEY = b"0" * 16
TIMEOUT_S = 20.0


def test_beats_show_what_is_observed_at_the_time(tmp_path: Path) -> None:
    listener = ControlSocket(f"ipc://{tmp_path}/listener", Codec(KEY))
    listener.open()
    progress = iter(range(1000))
    pulse = Pulse(
        address=f"ipc://{tmp_path}/pulse",
        codec=Codec(KEY),
        interval_s=0.001,
        observe=lambda: Heartbeat(
            replica="decode0",
            info=RankInfo(rank=0, generation=1, address="a"),
            progress=next(progress),
            has_work=False,
        ),
        listeners=lambda: [f"ipc://{tmp_path}/listener"],
    )
    pulse.open()
    seen: list[int] = []
    while len(seen) < 3:
        assert listener.wait(TIMEOUT_S)
        seen += [beat.progress for beat in listener.recv_all() if isinstance(beat, Heartbeat)]
    pulse.close()
    listener.close()
    assert seen[:3] == sorted(set(seen[:3]))
    assert list(tmp_path.iterdir()) == []


def test_a_pulse_that_was_never_opened_closes(tmp_path: Path) -> None:
    pulse = Pulse(
        address=f"ipc://{tmp_path}/pulse",
        codec=Codec(KEY),
        interval_s=1.0,
        observe=lambda: None,  # type: ignore[arg-type,return-value]
        listeners=list,
    )
    pulse.close()
    assert list(tmp_path.iterdir()) == []
