"""Tests of private runs: what servers receive, rounds with dropouts, and the reported epsilon."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import chimera
from chimera.cli.main import app
from chimera.cli.outcome import outcome
from chimera.codecs.codec import decode
from chimera.core.errors import ConfigurationError, MissingExtraError, NonFiniteError, PrivacyError
from chimera.core.message import Encoded
from chimera.core.parameters import Layout
from chimera.engines.http import wire
from chimera.models.torch_model import TorchModel
from chimera.privacy.accountant import Accountant
from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES
from chimera.testing.poison import NanOnPoison, digits, round_robin
from chimera.training.messages import wire_types  # noqa: F401 - it lets the settings travel
from chimera.training.messages.rejection import Applied
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.worker import OUTSIDE
from chimera.training.server.parameter_shard import ParameterShard
from training.conftest import Fit

WORKERS = 5
AVERAGED = {"name": "fed-avg", "local_steps": 3, "shards": 2}
SGD = {"name": "sgd", "lr": 0.3}
LOOSE = {"clip": 50.0, "secure_aggregation": True}
NOISY = {"clip": 1.0, "noise": 2.0, "secure_aggregation": True}
SEEDED = {**NOISY, "noise_seed": "run"}
CRASH_S = 0.03  # amid the second of these rounds


@pytest.fixture
def private(fit: Fit) -> Fit:
    """Train five clients in virtual time, in a few rounds."""

    def train(name: str = "run", **options: Any) -> chimera.Run:
        given = {"strategy": AVERAGED, "workers": WORKERS, "optimizer": SGD, "rounds": 4, "evaluate_every": 2}
        return fit(name, **{**given, **options})

    return train


def history_of(run: chimera.Run) -> list[list[float]]:
    from chimera.training.artifacts.checkpoint import Checkpoints

    saved = Checkpoints(str(run.run_dir / "checkpoints")).read_last()
    assert saved is not None
    return saved["guarantee"]["history"]


# The sum, and only the sum


def test_a_masked_run_equals_the_plain_run_up_to_rounding(private: Fit) -> None:
    plain, masked = private("plain"), private("masked", privacy=LOOSE)
    difference = plain.trained.parameters() - masked.trained.parameters()
    step = Privacy(**LOOSE).code(WORKERS).step  # the mean is off by half of it at most, each round
    assert 0 < np.abs(difference).max() < 100 * step
    assert masked.cost.bits_per_element_up == 32
    assert masked.cost.bytes_up > plain.cost.bytes_up  # keys and shares, too


@pytest.mark.parametrize("strategy", [entry.name for entry in STRATEGIES.entries() if entry.factory.private])
def test_all_private_strategies_send_masked_updates(private: Fit, strategy: str) -> None:
    run = private(strategy=strategy, privacy={**NOISY, "clip": 0.1}, rounds=2)
    assert history_of(run) == [[2.0, 1.0, 2]]
    assert run.cost.bits_per_element_up == 32


@pytest.mark.long
def test_the_same_seed_gives_the_same_bits_on_both_engines(private: Fit) -> None:
    """Keys and masks are different each time, and leave no trace."""
    virtual, again = private("virtual", privacy=SEEDED), private("again", privacy=SEEDED)
    real = private("real", privacy=SEEDED, engine="local", rounds=4)
    for other in (again, real):
        np.testing.assert_array_equal(virtual.trained.parameters(), other.trained.parameters())
        assert history_of(virtual) == history_of(other)


def test_servers_receive_masked_updates_only() -> None:
    layout = Layout(("w",), ((4,),))
    shard = ParameterShard(
        np.zeros(4, np.float32), layout, optimizer=OptimizerSettings("sgd", {"lr": 1.0}), privacy=Privacy(**LOOSE)
    )
    shard.expect(2, 2, 1.0, 0, np.zeros((2, 64), np.uint8))
    with pytest.raises(PrivacyError, match="without masks"):
        shard.update(Encoded("identity", 4, (np.ones(4, np.float32),)))
    shard.expect(3, 3, 1.0)
    with pytest.raises(PrivacyError, match="masks were not revealed"):
        shard.update(Encoded("masked", 4, (np.ones(4, np.uint32),)))


def test_clients_send_nothing_outside_a_round_of_secure_aggregation(private: Fit) -> None:
    """A driver that skips the protocol gets no update."""

    class Curious(FedAvg):
        def _answers(self, cluster: Any, sites: Any, plans: Any, round_: int, *, kept: bool) -> Any:
            calls = zip(plans[0], self._options(plans[0], round_, kept=kept), strict=True)
            return {work.worker.name: self._ask(work, sites[0].weights, own) for work, own in calls}

    with pytest.raises(PrivacyError, match="outside a round of secure aggregation"):
        private(strategy=Curious(local_steps=2), privacy=LOOSE)


@pytest.mark.long
def test_secure_aggregation_works_on_ray(private: Fit) -> None:
    virtual, real = private("virtual", privacy=SEEDED), private("real", privacy=SEEDED, engine="ray")
    np.testing.assert_array_equal(virtual.trained.parameters(), real.trained.parameters())


# Dropouts


def crashing(*workers: int, at_s: float = CRASH_S) -> dict[str, Any]:
    crash = {f"worker {rank}": at_s for rank in workers}
    return {"name": "simulated", "compute": {"seconds_per_sample": 4e-4}, "availability": {"crash": crash}}


def test_the_survivors_sum_is_unmasked_after_a_client_loss(private: Fit) -> None:
    """Four of five clients took their part of the noise with them into one of the sums; epsilon is that of this."""
    run = private(privacy=NOISY, engine=crashing(2))
    assert [event.event for event in run.events] == ["worker lost", "worker respawned"]
    assert history_of(run) == [[2.0, 1.0, 1], [2 * math.sqrt(4 / 5), 1.0, 1], [2.0, 1.0, 2]]
    assert run.metrics["epsilon"] == Accountant(history_of(run)).epsilon(1e-5)
    assert run.cost.rounds == 4


def test_a_round_below_the_threshold_is_repeated_and_reported(private: Fit) -> None:
    run = private(privacy=NOISY, engine=crashing(0, 2, 3))
    events = [event.event for event in run.events]
    assert events.count("worker lost") == events.count("worker respawned") == 3
    told = next(event for event in run.events if event.event == "round repeated")
    assert told.detail == "2 of 5 clients are left, but unmasking the sum needs 3"
    assert history_of(run) == [[2.0, 1.0, 4]]  # nothing was let out of the round that was cut short


def test_a_hanging_client_is_dropped_from_rounds_with_a_deadline(private: Fit) -> None:
    """It has no keys in time for any of them."""
    run = private(
        privacy=NOISY,
        strategy={**AVERAGED, "deadline_s": 1.0},
        faults=["hang worker 1 for 5 s at step 0"],
        checkpoint_every=4,
    )
    assert [event.event for event in run.events if event.event != "fault"] == []
    assert history_of(run) == [[2.0, 1.0, 4]]


def test_a_worker_killed_by_script_costs_at_most_one_round(private: Fit) -> None:
    run = private(privacy=NOISY, faults=["kill worker 2 at step 2"])
    assert (run.cost.rounds, run.lost_workers) == (4, 1)
    assert history_of(run) == [[2.0, 1.0, 4]]


def test_a_non_finite_update_counts_as_a_dropout(private: Fit) -> None:
    run = private(
        privacy=NOISY,
        model=TorchModel(NanOnPoison, seed=0),
        data=digits({2: 300}, WORKERS),
        partition=round_robin,
        rounds=2,
    )
    assert {(event.event, event.actor) for event in run.events} == {("gradient rejected", "worker 2")}
    assert history_of(run) == [[2 * math.sqrt(4 / 5), 1.0, 2]]


def test_a_run_without_enough_finite_updates_has_diverged(private: Fit) -> None:
    poison = digits(dict.fromkeys(range(WORKERS), 300), WORKERS)
    with pytest.raises(NonFiniteError, match="there is no other gradient"):
        private(privacy=NOISY, model=TorchModel(NanOnPoison, seed=0), data=poison, partition=round_robin)


def test_over_selected_stragglers_are_left_out_of_the_sum(private: Fit) -> None:
    late = {"name": "simulated", "compute": {"straggler_spread": 0.9, "spread": 0.4}}
    strategy = {**AVERAGED, "fraction": 0.6, "over_selection": 1.6}
    run = private(privacy=NOISY, strategy=strategy, engine=late)
    assert history_of(run)[0] == [2 * math.sqrt(3 / 5), 1.0, 1]
    assert sum(rounds for _, _, rounds in history_of(run)) == 4
    assert all(noise <= 2 for noise, _, _ in history_of(run))


# Noise and its accounts


def test_server_noise_has_the_configured_deviation() -> None:
    size, contributors = 200_000, 4
    layout = Layout(("w",), ((size,),))
    shard = ParameterShard(
        np.zeros(size, np.float32),
        layout,
        optimizer=OptimizerSettings("sgd", {"lr": 1.0}),
        privacy=Privacy(clip=0.5, noise=3.0, on="server"),
    )
    shard.expect(contributors, contributors, 0.25)
    weights, applied = shard.update(*[Encoded("identity", size, (np.zeros(size, np.float32),))] * contributors)
    deviation = decode(weights, size).std()
    assert deviation == pytest.approx(3.0 * 0.5 / contributors, rel=0.01)
    assert isinstance(applied, Applied)
    assert applied.mechanism == (3.0, 0.25)


@pytest.mark.parametrize("noise_seed", ["run", "system"])
def test_server_noise_is_independent_for_each_step(noise_seed: Any) -> None:
    """Otherwise the difference of two steps has no noise and reveals the difference of two rounds' updates."""
    size, layout = 20_000, Layout(("w",), ((20_000,),))
    privacy = Privacy(clip=1.0, noise=1.0, on="server", noise_seed=noise_seed)
    sgd = OptimizerSettings("sgd", {"lr": 1.0})
    shard = ParameterShard(np.zeros(size, np.float32), layout, optimizer=sgd, privacy=privacy)
    shard.expect(1, 1, 1.0)
    reached = [np.zeros(size)]
    for _ in range(2):
        weights, _ = shard.update(Encoded("identity", size, (np.zeros(size, np.float32),)))
        reached.append(decode(weights, size).astype(np.float64))
    correlation = np.corrcoef(reached[1], reached[2] - reached[1])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(size)  # five standard errors of the correlation of independent draws


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("on", ["clients", "server"])
def test_epsilon_accounts_for_the_noise_in_the_model_despite_dropouts(private: Fit, on: str, masks: bool) -> None:
    """Two of five clients have non-finite updates. The change of the model is noise only, because the updates are tiny.

    The sum is divided by the five clients that were asked, so that the model does not reveal which of them responded.
    """
    model, begun = TorchModel(NanOnPoison, seed=0), TorchModel(NanOnPoison, seed=0).parameters()
    run = private(
        privacy={"clip": 1e-6, "noise": 2e6, "on": on, "secure_aggregation": masks},
        strategy={**AVERAGED, "shards": 1},
        rounds=1,
        model=model,
        data=digits({2: 300, 4: 300}, WORKERS),
        partition=round_robin,
    )
    noise = run.trained.parameters() - begun
    [[multiplier, share, rounds]] = history_of(run)
    assert (share, rounds) == (1.0, 1)
    assert multiplier == pytest.approx(2e6 * (math.sqrt(3 / 5) if on == "clients" else 1))
    expected = multiplier * 1e-6 / WORKERS
    assert noise.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * len(noise)))
    assert run.metrics["epsilon"] == Accountant(history_of(run)).epsilon(1e-5)


def test_a_noisy_sum_is_divided_by_the_number_of_asked_clients() -> None:
    layout = Layout(("w",), ((4,),))
    update = Encoded("identity", 4, (np.full(4, 0.3, np.float32),))

    def moved(noise: float) -> float:
        shard = ParameterShard(
            np.zeros(4, np.float32),
            layout,
            optimizer=OptimizerSettings("sgd", {"lr": 1.0}),
            privacy=Privacy(clip=1.0, noise=noise),
        )
        shard.expect(5, 5, 1.0)
        weights, _ = shard.update(update, update, update)
        return -float(decode(weights, 4)[0])

    assert moved(0.0) == pytest.approx(0.3)  # the mean of three
    assert moved(1.0) == pytest.approx(0.3 * 3 / 5)


def test_a_released_sum_is_counted_even_if_its_round_fails(private: Fit) -> None:
    """The server dies with the unmasked sum; the round is repeated, and so two sums of it were let out."""

    class Mortal(FedAvg):
        killed = False

        def _answers(self, cluster: Any, sites: Any, plans: Any, round_: int, *, kept: bool) -> Any:
            answers = super()._answers(cluster, sites, plans, round_, kept=kept)
            if round_ == 1 and not self.killed:
                self.killed = True
                cluster._engine.kill(cluster.shards[0])
            return answers

    run = private(privacy=NOISY, strategy=Mortal(local_steps=2), checkpoint_every=1)
    assert [event.event for event in run.events] == ["server lost", "server respawned", "went back"]
    assert (run.cost.rounds, history_of(run)) == (4, [[2.0, 1.0, 5]])


@pytest.mark.long
@pytest.mark.parametrize("on", ["clients", "server"])
def test_training_with_noise_gives_a_useful_model(private: Fit, on: str) -> None:
    """A hundred clients with 14 images each; without noise 93 % of the test images are right, without training 10 %."""
    run = private(
        model={"name": "mlp", "hidden": []},
        strategy={"name": "fed-avg", "local_steps": 4},
        optimizer={"name": "sgd", "lr": 0.5},
        workers=100,
        batch_size=14,
        rounds=10,
        evaluate_every=5,
        checkpoint_every=10,
        privacy={"clip": 1.0, "noise": 2.0, "on": on},
    )
    assert run.metrics["accuracy"] > 0.88
    assert run.metrics["epsilon"] == Accountant([[2.0, 1.0, 10]]).epsilon(1e-5) < 8.1
    seen = run.history["epsilon"].dropna()
    assert seen.is_monotonic_increasing
    assert len(seen) == 2


def test_the_summary_states_the_assumptions_of_epsilon(private: Fit) -> None:
    run = private(strategy={**AVERAGED, "fraction": 0.6}, privacy={"clip": 1.0, "noise": 2.0, "on": "server"})
    told = run.summary()
    assert (told["epsilon"], told["delta"]) == (Accountant([[2.0, 1.0, 4]]).epsilon(1e-5), 1e-5)
    sampled = Accountant([[2.0, 0.6, 4]]).epsilon(1e-5)
    said = told["privacy"]["guarantee"]
    assert said == (
        f"epsilon {told['epsilon']:.3g} at delta 1e-05 ({sampled:.3g} if clients were drawn in secret, by Poisson sampling)"
        ", but not against the servers"
    )
    assert told["privacy"]["epsilon_sampled"] == sampled
    assert (told["privacy"]["noise_seed"], told["privacy"]["on"]) == ("system", "server")
    assert told["privacy"]["outside"] == list(OUTSIDE)
    page = (run.run_dir / "report.html").read_text()
    assert "<dt>epsilon</dt>" in page
    assert "delta, of epsilon" in page
    assert f"Privacy: {said}." in page
    assert f"Not covered: {'; '.join(OUTSIDE)}." in page
    assert dict(outcome(told))["not covered"] == "; ".join(OUTSIDE)


def test_masked_runs_report_both_bounds(private: Fit) -> None:
    told = private(privacy=LOOSE, rounds=1).summary()["privacy"]["guarantee"]
    assert "fewer than t clients work with the servers" in told
    assert "fewer than 2t - n if the servers lie about survivors" in told


def test_a_seeded_run_reports_no_guarantee_instead_of_epsilon(private: Fit) -> None:
    run = private(privacy=SEEDED)
    nothing, told = "no guarantee (seeded noise)", run.summary()
    assert (told["epsilon"], told["metrics"].get("epsilon")) == (nothing, None)
    assert json.loads((run.run_dir / "summary.json").read_text())["epsilon"] == nothing
    assert told["privacy"]["guarantee"].startswith(nothing)
    assert dict(outcome(told))["privacy"].startswith(nothing)
    assert set(run.history["epsilon"].dropna()) == {nothing}
    page = (run.run_dir / "report.html").read_text()
    assert f"<dt>epsilon</dt><dd>{nothing}</dd>" in page
    everything = b"".join(file.read_bytes() for file in run.run_dir.rglob("*") if file.is_file())
    assert f"{Accountant(history_of(run)).epsilon(1e-5):.3g}".encode() not in everything


@pytest.mark.long
def test_a_comparison_reports_the_missing_guarantee(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(FILE)
    out = tmp_path / "compared"
    command = ["compare", str(file), "--vary", "train.privacy.noise_seed=system,run", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    epsilon = f"{Accountant([[1.1, 1.0, 2]]).epsilon(1e-5):.4g}"
    for text in ((out / "comparison.html").read_text(), (out / "comparison.csv").read_text()):
        assert "no guarantee (seeded noise)" in text
        assert epsilon[:4] in text


def test_system_noise_differs_between_runs(private: Fit) -> None:
    settings = {"clip": 1.0, "noise": 1.0}
    one, other = private("one", privacy=settings), private("other", privacy=settings)
    assert not np.array_equal(one.trained.parameters(), other.trained.parameters())


def test_a_resumed_run_has_the_same_weights_and_epsilon(private: Fit) -> None:
    whole = private("whole", privacy=SEEDED, rounds=6, checkpoint_every=3)
    private("cut", privacy=SEEDED, rounds=3, checkpoint_every=3)
    resumed = private("cut", privacy=SEEDED, rounds=6, checkpoint_every=3, resume=True)
    np.testing.assert_array_equal(whole.trained.parameters(), resumed.trained.parameters())
    assert whole.metrics == resumed.metrics
    assert history_of(resumed) == [[2.0, 1.0, 6]]


def test_momenta_stay_on_workers_and_a_resumed_run_reports_their_reset(private: Fit) -> None:
    options = {"optimizer": {"name": "adam", "lr": 0.01}, "privacy": NOISY, "checkpoint_every": 2}
    first = private("cut", rounds=2, **options)
    resumed = private("cut", rounds=4, resume=True, **options)
    assert first.events == []
    assert [(event.event, event.actor) for event in resumed.events] == [
        ("state gone", f"worker {rank}") for rank in range(WORKERS)
    ]


def test_without_noise_no_epsilon_is_reported(private: Fit) -> None:
    run = private(privacy={"clip": 1.0})
    assert "epsilon" not in run.summary()
    assert "epsilon" not in run.metrics
    assert run.summary()["privacy"]["clip"] == 1.0


def test_clients_clip_what_they_send(private: Fit) -> None:
    """With so small a norm the model moves by no more than that a round."""
    run = private(privacy={"clip": 1e-3}, rounds=1)
    moved = run.trained.parameters() - chimera.train(**start_of(run)).trained.parameters()
    assert 0 < np.linalg.norm(moved.astype(np.float64)) <= 1e-3 * (1 + 1e-3)  # rounding of the weights


def start_of(run: chimera.Run) -> dict[str, Any]:
    """Return the options of a run that does not change the model."""
    return {
        "model": {"name": "mlp", "hidden": [16]},
        "data": "digits",
        "engine": "simulated",
        "workers": WORKERS,
        "rounds": 1,
        "batch_size": 16,
        "strategy": AVERAGED,
        "optimizer": {"name": "sgd", "lr": 0.0},
        "out": run.run_dir.with_name("start"),
    }


# Experiment files, and what is refused

FILE = """
[data]
name = "digits"
[model]
name = "mlp"
hidden = [8]
[strategy]
name = "fed-avg"
[engine]
name = "simulated"
[train]
workers = 4
rounds = 2
[train.privacy]
clip = 1.0
noise = 1.1
secure_aggregation = true
"""


def test_privacy_can_be_set_in_a_file_and_the_command_reports_epsilon(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(FILE)
    command = ["train", str(file), "--json", "--out", str(tmp_path / "run"), "--set", "train.privacy.noise=2.0"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["epsilon"] == Accountant([[2.0, 1.0, 2]]).epsilon(1e-5)
    written = chimera.Experiment.load(tmp_path / "run" / "experiment.toml").tables["train"]["privacy"]
    assert (written["noise"], written["threshold"]) == (2.0, 0.6)


@pytest.mark.parametrize(
    ("privacy", "options", "said"),
    [
        ({"noise": 1.0}, {}, "privacy: there is no clip"),
        ({"clip": "far"}, {}, "privacy: Expected float, got str, for clip"),
        ({"clip": 0.0}, {}, "clip is a norm, above 0, not 0.0"),
        ({"clip": 1.0, "noise": -1.0}, {}, "noise is a multiple of clip"),
        ({"clip": 1.0, "delta": 1.0}, {}, "delta is a probability"),
        ({"clip": 1.0, "threshold": 0.4}, {}, "threshold is a share of the clients, from 0.5 to 1, not 0.4"),
        ({"clip": 1.0, "on": "moon"}, {}, "'moon', for on; it may be 'clients', 'server'"),
        ({"clip": 1.0, "epsilon": 3}, {}, "privacy has no key 'epsilon'; keys: clip, noise, delta"),
        ({"clip": 1.0}, {"strategy": "parameter-server"}, "'parameter-server' send more than one change of weights"),
        ({"clip": 1.0}, {"strategy": "fed-buff"}, "'fed-buff' send more than one"),
        ({"clip": 1.0}, {"strategy": "local-sgd"}, "'local-sgd' send more than one"),
        ({"clip": 1.0}, {"strategy": "scaffold"}, "'scaffold' send more than one"),
        ({"clip": 1.0}, {"strategy": "all-reduce"}, "'all-reduce' send more than one"),
        (
            NOISY,
            {"strategy": {**AVERAGED, "weighted": True}},
            "epsilon does not cover weights by samples: with noise, remove weighted",
        ),
        (NOISY, {"strategy": {"name": "fed-nova", "local_epochs": 1}}, "and local_epochs of fed-nova"),
        ({"clip": 1.0}, {"strategy": {**AVERAGED, "send": "weights"}}, "set send to 'change'"),
        ({"clip": 1.0}, {"strategy": {**AVERAGED, "aggregation": "median"}}, "aggregation 'median' needs each"),
        ({"clip": 1.0}, {"codec": "qsgd"}, "codec 'qsgd' changes clipped updates: use 'identity'"),
        (LOOSE, {"strategy": {**AVERAGED, "fraction": 0.2}}, "with one client in a round, the sum is its update"),
        ({"clip": 1.0}, {"model": {"name": "mlp", "batch_norm": True}}, "buffers, such as the means of BatchNorm"),
        ({"clip": 1.0}, {"model": {"name": "mlp", "batch_norm": True, "buffers": "none"}}, "buffers, such as"),
        ({"clip": 1.0}, {"codec": {"name": "rows", "downlink": "rows"}}, "codec 'rows' changes clipped updates"),
    ],
)
def test_incompatible_options_raise_a_one_line_error(
    private: Fit, privacy: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        private(privacy=privacy, **options)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_plain_mean_may_be_given_as_a_table(private: Fit) -> None:
    run = private(privacy=LOOSE, strategy={**AVERAGED, "aggregation": {"name": "mean"}}, rounds=1)
    assert run.cost.rounds == 1


@pytest.mark.parametrize(
    ("module", "settings"), [("cryptography", LOOSE), ("opacus", {"clip": 1.0, "noise": 1.0})], ids=["masks", "noise"]
)
def test_a_missing_package_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, settings: dict[str, Any]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else found(name))
    with pytest.raises(
        MissingExtraError, match=rf"'{module}', which is not installed: pip install 'chimera-dml\[privacy"
    ):
        Privacy(**settings).check(FedAvg(), "fed-avg", ("identity", {}), 3)


def test_nodes_add_noise_without_opacus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert Privacy(clip=1.0, noise=1.0).deviation(4) == 0.5


def test_privacy_settings_are_sent_to_nodes() -> None:
    settings = Privacy(clip=1.0, noise=2.0, on="server")
    assert wire.unpack(wire.pack([settings, Applied(1, 2, (), (2.0, 0.5))])) == [
        settings,
        Applied(1, 2, (), (2.0, 0.5)),
    ]
