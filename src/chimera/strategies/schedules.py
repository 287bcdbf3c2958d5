"""Schedules: the order in which the stages of a pipeline process their micro-batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

Phase: TypeAlias = Literal["forward", "backward"]


class Task(NamedTuple):
    """One pass of one micro-batch through one stage."""

    stage: int
    phase: Phase
    micro: int


Schedule: TypeAlias = Callable[[int, int, int], Sequence[tuple[Phase, int]]]
"""Returns the passes of stage ``s`` of ``S`` in a step of ``M`` micro-batches, in order."""


def gpipe(stage: int, stages: int, micro_batches: int) -> list[tuple[Phase, int]]:  # noqa: ARG001 - all stages alike
    """Return all forward passes, then all backward passes (GPipe, Huang et al. 2019).

    Backward passes have the order of the forward passes. All schedules thus add gradients in the same order, with equal bits.
    """
    there: list[tuple[Phase, int]] = [("forward", micro) for micro in range(micro_batches)]
    return there + [("backward", micro) for micro in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[tuple[Phase, int]]:
    """Return 1F1B: each backward pass as early as possible (Narayanan et al. 2019, "PipeDream"; its flushed form, 2021).

    A stage holds the activations of at most as many micro-batches as there are stages from it to the last one.
    """
    ahead = min(stages - 1 - stage, micro_batches)
    tasks: list[tuple[Phase, int]] = [("forward", micro) for micro in range(ahead)]
    for micro in range(ahead, micro_batches):
        tasks += [("forward", micro), ("backward", micro - ahead)]
    return tasks + [("backward", micro) for micro in range(micro_batches - ahead, micro_batches)]


SCHEDULES: dict[str, Schedule] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def in_turn(schedule: Schedule, stages: int, micro_batches: int) -> Iterator[Task]:
    """Yield the tasks of all stages: each stage's tasks in its order, and each task after the tasks whose results it needs."""
    waiting = [deque(schedule(stage, stages, micro_batches)) for stage in range(stages)]
    done: set[Task] = set()
    while any(waiting):
        for stage, tasks in enumerate(waiting):
            while tasks and _needed(Task(stage, *tasks[0]), stages) <= done:
                task = Task(stage, *tasks.popleft())
                done.add(task)
                yield task


def _needed(task: Task, stages: int) -> set[Task]:
    stage, phase, micro = task
    if phase == "forward":
        return {Task(stage - 1, "forward", micro)} if stage else set()
    last = stage == stages - 1
    return {Task(stage, "forward", micro) if last else Task(stage + 1, "backward", micro)}
