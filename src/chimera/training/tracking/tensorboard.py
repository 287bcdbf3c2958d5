"""TensorBoard: event files in the folder of the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.training.tracking.tracker import TRACKERS, Tracked, Tracker

FOLDER = "tensorboard"


@TRACKERS.register("tensorboard", requires="tensorboard", extra="track")
class TensorBoard(Tracker):
    """Event files for TensorBoard in ``tensorboard`` of the run's folder: show them by ``tensorboard --logdir runs``."""

    def __init__(self) -> None:
        self._writer: Any = None

    def begin(self, run: Tracked) -> str:
        """Open an event file, and write the settings as a text."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.folder / FOLDER
        self._writer = EventFileWriter(str(folder))
        rows = "\n".join(f"| {key} | {value} |" for key, value in run.settings.items())
        self._text("settings", f"| key | value |\n|---|---|\n{rows}", 0)
        return FOLDER

    def log(self, values: Mapping[str, float], round_: int, seconds: float) -> None:  # noqa: ARG002 - events have times
        """Write a scalar for each value."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(
            Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]), round_
        )

    def event(self, text: str, round_: int) -> None:
        """Write a text."""
        self._text("events", text, round_)

    def end(self, summary: Mapping[str, float], files: Mapping[str, Path], *, finished: bool) -> None:  # noqa: ARG002
        """Close the event file. The folder of the run already has the report."""
        self._writer.close()

    def _text(self, name: str, text: str, round_: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        kind = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        self._add(Summary(value=[Summary.Value(tag=name, metadata=kind, tensor=tensor)]), round_)

    def _add(self, summary: Any, round_: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=round_, summary=summary))
