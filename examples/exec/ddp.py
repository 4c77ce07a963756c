"""ResNet-20 on CIFAR-10 with DistributedDataParallel over gloo: an ordinary script, and two lines of gradwire's.

    gradwire exec four-hosts -- python examples/exec/ddp.py --data cifar10 --steps 20
    gradwire exec four-hosts -- python examples/exec/ddp.py --capture --reducer topk
    gradwire exec four-hosts --clock virtual --trace resnet20 -- python examples/exec/ddp.py

Without --data pictures are made up. With --capture the run is recorded (docs/capture.md); with --reducer gradients are
sent as gradwire's reducers make them smaller. With --trace of gradwire exec computing takes that trace's times.
"""

from __future__ import annotations

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.traces.datasets.images import batches, load_images, synthetic_images
from gradwire.traces.models import MODELS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="folder of CIFAR-10")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16, help="pictures of every rank and step")
    parser.add_argument("--reducer", choices=("topk", "fp16"), help="what is sent instead of gradients")
    parser.add_argument("--capture", action="store_true", help="record a trace where gradwire exec wants it")
    return parser.parse_args()


def reduced(ddp: DistributedDataParallel, name: str) -> None:
    """Have DDP send what a reducer makes of gradients."""
    from gradwire.training.exchange.ddp_hooks import register
    from gradwire.training.reducers.feedback import ErrorFeedback
    from gradwire.training.reducers.fp16 import Half
    from gradwire.training.reducers.topk import TopK

    register(ddp, ErrorFeedback(reducer=TopK(ratio=0.01)) if name == "topk" else Half())


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = gradwire.paced(DistributedDataParallel(MODELS["resnet20"].build(10)))
    if asked.reducer:
        reduced(model, asked.reducer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pictures = load_images(asked.data) if asked.data else synthetic_images(10, 32, seed=0)
    loader = batches(pictures, asked.batch, seed=rank)
    recording = contextlib.nullcontext()
    if asked.capture:
        recording = gradwire.capture(model, optimizer, out=os.environ["GRADWIRE_TRACE"], warmup=2, iterations=3)
    gradwire.mark()
    with recording as capture:
        for step in range(asked.steps):
            images, labels = (torch.as_tensor(each) for each in next(loader))
            optimizer.zero_grad()
            output = model(images.permute(0, 3, 1, 2).float() / 128 - 1)
            loss = nn.functional.cross_entropy(output, labels)
            loss.backward()
            optimizer.step()
            if capture is not None:
                capture.step(loss)
            gradwire.mark(step, loss=loss.item())
    if rank == 0:
        print(f"loss {loss.item():.4f} after {asked.steps} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
