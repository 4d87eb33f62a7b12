"""What a run is placed on: as the keys say, else as found."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from minirl.accounting.machine import SHEETS, Machine, UnknownGpu, here, kind_of, machine
from minirl.compose import load
from minirl.config import ConfigError, Gpu


def placed(*overrides: str, visible: tuple[str, ...] = ()) -> Machine:
    config = load(list(overrides))
    return machine(config.machine, config.run, visible)


def test_without_a_gpu_it_is_this_host() -> None:
    found = placed()
    assert not found.on_gpu and found.num_ranks == 1
    assert 0 < found.host_memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert placed("run.num_threads=4").device.arithmetic == 4 * found.device.arithmetic


def test_every_key_of_the_machine_counts() -> None:
    base = placed("machine.gpu=h100", "machine.gpus_per_node=8")
    assert (base.num_ranks, base.devices_per_node, base.on_gpu) == (8, 8, True)
    assert placed("machine.gpu=h200", "machine.gpus_per_node=8").device.memory > base.device.memory
    assert placed("machine.gpu=h100", "machine.gpus_per_node=4").num_ranks == 4
    nodes = placed("machine.gpu=h100", "machine.gpus_per_node=8", "machine.num_nodes=3")
    assert (nodes.num_ranks, nodes.devices_per_node) == (24, 8)
    assert placed("machine.host_memory_gib=2").host_memory == 2 << 30


def test_ranks_are_those_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert placed().num_ranks == 2
    assert placed("machine.gpu=h100", visible=("0", "1", "2")).num_ranks == 2


def started_here(*overrides: str, visible: tuple[str, ...] = (), ranks: int = 1) -> Machine:
    config = load(list(overrides))
    return here(config.machine, config.run, visible, ranks)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the driver say that the GPUs are of this model."""
    return lambda model: monkeypatch.setattr("minirl.accounting.machine._model_here", lambda: model)


def test_a_run_that_is_started_here_is_counted_with_this_machine(driver: Callable[[str], None]) -> None:
    """What a scale plans for says the kind of GPUs where the driver's word tells nothing, and nothing where there are
    none."""
    planned = ["machine.gpu=h100", "machine.gpus_per_node=8", "machine.num_nodes=2", "machine.host_memory_gib=1800"]
    assert started_here(*planned, ranks=2) == replace(started_here(), num_ranks=2, devices_per_node=2)
    own = started_here().host_memory
    for model, kind in {"NVIDIA H200": "h200", "NVIDIA H900": "h100"}.items():
        driver(model)
        found = started_here(*planned, visible=("0", "1", "2", "3"), ranks=4)
        assert (found.device.name, found.num_ranks, found.devices_per_node) == (kind, 4, 4)
        assert found.host_memory == min(own, 1800 << 30)
    assert not started_here(*planned, "run.device=cpu", visible=("0",)).on_gpu


@pytest.mark.parametrize("visible", [(), ("0",)])
def test_runs_that_are_started_here_have_no_more_memory_than_there_is(
    visible: tuple[str, ...], driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`experiment=node` plans with a node's 1920 GiB; less than there is may be said."""
    driver("NVIDIA H200")
    monkeypatch.setattr("minirl.accounting.machine._host_memory", lambda: 64.0 * (1 << 30))
    for said, counted in {"null": 64, "1920": 64, "2": 2}.items():
        found = started_here(f"machine.host_memory_gib={said}", visible=visible)
        assert (found.host_memory, found.is_here) == (counted << 30, True), said


def test_a_gpu_without_figures_is_told_apart_from_bad_input(driver: Callable[[str], None]) -> None:
    driver("NVIDIA H900")
    with pytest.raises(UnknownGpu, match=r"the GPU NVIDIA H900 has no row .* set machine\.gpu to the nearest"):
        started_here(visible=("6",))


def test_gpus_need_a_kind() -> None:
    with pytest.raises(ConfigError, match=r"machine\.gpus_per_node=8: of which kind\? set machine\.gpu"):
        placed("machine.gpus_per_node=8")
    with pytest.raises(ConfigError, match=r"machine\.gpu=h1000: .*did you mean h100"):
        placed("machine.gpu=h1000")


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", Gpu.h100),
        ("NVIDIA H200", Gpu.h200),
        ("NVIDIA H20", Gpu.h20),
        ("NVIDIA A100-SXM4-80GB", Gpu.a100_80gb),
        ("NVIDIA A100-PCIE-40GB", Gpu.a100_40gb),
        ("NVIDIA GeForce RTX 4090", Gpu.rtx_4090),
        ("NVIDIA L40S", Gpu.l40s),
        ("Tesla T4", None),
    ],
)
def test_the_drivers_name_of_a_gpu(model: str, kind: Gpu | None) -> None:
    assert kind_of(model) == kind


def test_every_kind_has_a_data_sheet() -> None:
    assert set(SHEETS) == set(Gpu)
