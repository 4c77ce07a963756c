"""The built-in models have the published numbers of parameters and take small images."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the models are PyTorch modules (extra: capture)")

from traces.models.cnn import MODELS  # noqa: E402


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("resnet18", 1000, 11_689_512),
        ("resnet50", 1000, 25_557_032),
        ("resnet50", 10, 23_528_522),  # 990 fewer rows of 2048 weights and a bias
        ("vgg16", 1000, 138_357_544),
    ],
)
def test_parameter_counts(name: str, classes: int, parameters: int) -> None:
    with torch.device("meta"):
        model = MODELS[name](classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_resnet50_has_the_known_layers() -> None:
    with torch.device("meta"):
        model = MODELS["resnet50"](1000)
    kinds = [type(m).__name__ for m in model.modules() if list(m.parameters(recurse=False))]
    assert (kinds.count("Conv2d"), kinds.count("BatchNorm2d"), kinds.count("Linear")) == (53, 53, 1)
    assert len(list(model.parameters())) == 161


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("size", [32, 64])
def test_small_images_pass(name: str, size: int) -> None:
    torch.manual_seed(0)
    logits = MODELS[name](10)(torch.randn(2, 3, size, size))
    assert logits.shape == (2, 10)
    assert torch.isfinite(logits).all()


def test_vgg_shape_on_the_meta_device() -> None:
    with torch.device("meta"):
        logits = MODELS["vgg16"](10)(torch.randn(2, 3, 64, 64))
    assert logits.shape == (2, 10)
