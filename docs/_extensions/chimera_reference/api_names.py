"""The public names of the Python interface, by page, and links to them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import chimera
from chimera.cli.list import FAMILIES
from chimera.core.registry import load_object
from chimera_reference.markup import Link
from chimera_reference.names import full_name, imported, resolve


@dataclass(frozen=True)
class ApiPage:
    """A page of the Python interface.

    Attributes
    ----------
    file : name of the page without its ending.
    title : title of the page.
    about : first sentence of the page.
    names : import paths of classes, functions and constants.
    members : whether the methods of classes are listed.
    """

    file: str
    title: str
    about: str
    names: tuple[str, ...]
    members: bool = True


def _public(*names: str) -> tuple[str, ...]:
    return tuple(f"chimera.{name}" for name in names)


OF_CHIMERA = {
    "api-training": (
        "Training and runs",
        "These names of `chimera` train a model, follow the run, and read its result.",
        _public("train", "Trainer", "Experiment", "Run", "load", "compare", "Comparison", "Callback", "Progress")
        + _public("Event", "Terminated"),
    ),
    "api-data-and-models": (
        "Data sets and models",
        "These names of `chimera` wrap data and models that a user brings as objects of Python.",
        _public("Dataset", "Split", "SampleDataset", "IterableSamples", "TorchModel", "SklearnModel", "embed"),
    ),
    "api-actors": (
        "Engines, actors and remote functions",
        "These names start actors and functions on an engine, and describe what an engine offers.",
        _public("engine", "get", "remote.run", "remote.Worker", "ddp.hook", "ddp.compress", "ddp.State")
        + tuple(f"chimera.core.engine.{name}" for name in ("Engine", "Actor", "Ref", "Group", "Resources", "Disturbance"))
        + ("chimera.core.trace.TraceRow",),
    ),
    "api-serving": (
        "Inference, jobs and nodes",
        "These names of `chimera` answer queries with trained models, submit jobs, and serve REST nodes.",
        _public("infer", "InferenceCluster", "InferenceJob", "submit", "JobHandle", "run", "utils.parse_times_file"),
    ),
}  # fmt: skip
BASES = (
    "chimera.strategies.strategy.Strategy", "chimera.strategies.strategy.Round", "chimera.strategies.cluster.Cluster",
    "chimera.codecs.codec.Codec", "chimera.codecs.codec.Codecs", "chimera.core.message.Encoded",
    "chimera.core.parameters.Layout", "chimera.core.registry.Registry", "chimera.core.registry.Entry",
    "chimera.strategies.topologies.topology.Topology", "chimera.training.aggregation.aggregation.Aggregation",
    "chimera.inference.policies.policy.Policy", "chimera.inference.policies.policy.Contender",
    "chimera.training.worker.extension.WorkerExtension", "chimera.training.tracking.tracker.Tracker",
    "chimera.training.tracking.tracker.Tracked", "chimera.models.model.Model", "chimera.data.partition.Partitioner",
    "chimera.engines.simulated.models.devices.DeviceModel",
    "chimera.engines.simulated.models.presence_models.AvailabilityModel",
    "chimera.engines.simulated.models.topology.Topology",
)  # fmt: skip
REGISTRIES = (
    *(path.replace(":", ".") for path in FAMILIES.values()),
    "chimera.training.worker.extension.WORKER_EXTENSIONS",
)
SETTINGS = (
    "chimera.core.engine.Resources", "chimera.training.progress.budget.Budget", "chimera.models.compute.Compute",
    "chimera.data.loader.Loading", "chimera.training.optimizers.optimizer.OptimizerSettings",
    "chimera.training.optimizers.schedule.Schedule", "chimera.core.optimizer_table.optimizer_table",
    "chimera.training.privacy.settings.Privacy", "chimera.training.fault_tolerance.injection.Fault",
    "chimera.training.fault_tolerance.injection.Fault.read", "chimera.training.worker.attack.Attack",
    "chimera.strategies.participation.Participation",
    "chimera.strategies.hierarchy.Hierarchy", "chimera.strategies.local_steps.LocalSteps",
    "chimera.engines.simulated.models.network.Network", "chimera.engines.simulated.models.network.NodeNetwork",
    "chimera.engines.simulated.models.compute.Compute", "chimera.engines.simulated.models.compute.CodecCost",
    "chimera.engines.simulated.models.devices.Devices", "chimera.engines.simulated.models.availability.Availability",
)  # fmt: skip


@lru_cache(maxsize=1)
def api_pages() -> tuple[ApiPage, ...]:
    """Return all pages of the Python interface."""
    pages = [ApiPage(file, *rest) for file, rest in OF_CHIMERA.items()]
    pages.append(
        ApiPage(
            "api-plug-ins",
            "Base classes and registries of plug-ins",
            "A plug-in of your own derives from one of these classes, and is registered under a name.",
            BASES + REGISTRIES,
        )
    )
    known = {name for page in pages for name in page.names}
    pages.append(
        ApiPage(
            "api-settings",
            "Settings as objects",
            "Tables of an experiment file can be given as objects of these classes from Python.",
            tuple(name for name in SETTINGS if name not in known),
            members=False,
        )
    )
    for family, path in FAMILIES.items():
        made = [entry.factory for entry in load_object(path).entries() if not entry.distribution]
        pages.append(
            ApiPage(
                f"api-{family}",
                f"Classes and functions: {family}",
                f"These classes and functions create the {family}; [their page]({family}.md) has names and examples.",
                tuple(dict.fromkeys(full_name(each) for each in made)),
                members=False,
            )
        )
    return tuple(pages)


@lru_cache(maxsize=1)
def documented() -> dict[str, str]:
    """Return the name under which each object is documented, by the full name of the object."""
    found = {}
    for page in api_pages():
        for name in page.names:
            thing = imported(name)
            found[full_name(thing) or name if callable(thing) else name] = name
            if page.members and inspect.isclass(thing):
                for member, value in vars(thing).items():
                    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                    if not member.startswith("_") and getattr(function, "__doc__", None) and full_name(function):
                        found.setdefault(full_name(function), f"{name}.{member}")
    return found | {full_name(each): full_name(each) for each in error_classes()}


@lru_cache(maxsize=1)
def error_classes() -> tuple[type, ...]:
    """Return the public error classes, base classes first."""
    from chimera.core import errors

    return tuple(
        each for each in vars(errors).values() if inspect.isclass(each) and each.__module__ == "chimera.core.errors"
    )


def target_of(name: str, owner: Any) -> str | None:
    """Return the documented name of what ``name`` means in a docstring of ``owner``; None if it is not documented.

    Raises
    ------
    LookupError : the name means nothing.
    """
    try:
        thing = resolve(name, owner)
    except LookupError:
        ends = {known for full, known in documented().items() if full.endswith(f".{name}")}
        if len(ends) != 1:
            raise
        return ends.pop()
    thing = getattr(thing, "fget", None) or getattr(thing, "__func__", thing)
    return documented().get(full_name(thing))


def links_of(owner: Any) -> Link:
    """Return the function that writes a name in a docstring of ``owner`` as Markdown, with a link if it is documented."""

    def link(name: str) -> str:
        if anchor := plugin_anchor(name):
            return f"[`{name}`](#{anchor})"
        try:
            target = target_of(name, owner)
        except LookupError:
            target = None
        return f"{{py:obj}}`{name} <{target}>`" if target else f"`{name}`"

    return link


@lru_cache(maxsize=1)
def _plugin_anchors() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for family, path in FAMILIES.items():
        for entry in load_object(path).entries():
            if not entry.distribution:
                found.setdefault(entry.name, []).append(f"{family}-{entry.name}")
    return found


def plugin_anchor(name: str) -> str | None:
    """Return the label of the section on a plug-in; None if no family or several have the name."""
    anchors = _plugin_anchors().get(name, [])
    return anchors[0] if len(anchors) == 1 else None


def all_public_names() -> list[str]:
    """Return the import path of each public name of `chimera` that is no module and no version."""
    modules = {"ddp", "remote", "utils"}
    return [f"chimera.{name}" for name in chimera.__all__ if name not in modules and not name.startswith("__")]
