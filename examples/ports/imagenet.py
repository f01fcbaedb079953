"""A folder of images and a ResNet-18, in jaxpar: what imagenet_torch.py does.

    python examples/ports/imagenet.py DIR
    jaxpar launch -n 2 examples/ports/imagenet.py DIR

DIR has the folders train and val, and in each a folder for every class; --make-data writes a small one.
"""

import argparse
import os
import time
from enum import Enum
from pathlib import Path

import jax
import numpy as np
from data import ImageFolder, write_image_folder
from resnet import resnet18

import jaxpar
import jaxpar.distributed as dist
from jaxpar.data import DataLoader, DistributedSampler, Subset
from jaxpar.nn.functional import cross_entropy
from jaxpar.optim import Optimizer, sgd
from jaxpar.optim.lr_scheduler import StepLR

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def options(arguments):
    parser = argparse.ArgumentParser(description="A folder of images and a ResNet-18")
    parser.add_argument("data", metavar="DIR", help="folder with train and val")
    parser.add_argument("--make-data", type=int, default=0, metavar="N", help="write N images to DIR first")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--size", type=int, default=224, help="side of an image in pixels")
    parser.add_argument("-j", "--workers", type=int, default=0, help="workers that read data")
    parser.add_argument("--epochs", type=int, default=90, help="how often to go through the data")
    parser.add_argument("--start-epoch", type=int, default=0, help="where to begin")
    parser.add_argument("-b", "--batch-size", type=int, default=256, help="rows of a batch, of all devices")
    parser.add_argument("--lr", type=float, default=0.1, help="initial learning rate")
    parser.add_argument("--momentum", type=float, default=0.9, help="of SGD")
    parser.add_argument("--weight-decay", type=float, default=1e-4, help="of SGD")
    parser.add_argument("-p", "--print-freq", type=int, default=10, help="batches between two lines")
    parser.add_argument("--resume", default="", metavar="PATH", help="checkpoint to go on from")
    parser.add_argument("--out", default=".", metavar="DIR", help="folder for checkpoints")
    parser.add_argument("-e", "--evaluate", action="store_true", help="evaluate and do not train")
    parser.add_argument("--no-accel", action="store_true", help="train on the CPU")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and crops")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    return parser.parse_args(arguments)


class Train:
    """torchvision: RandomCrop with padding, RandomHorizontalFlip."""

    def __init__(self, size, seed):
        self.size, self.random = size, np.random.RandomState(seed)

    def __call__(self, image):
        image = np.pad(image, ((4, 4), (4, 4), (0, 0)))
        top, left = (self.random.randint(0, n - self.size + 1) for n in image.shape[:2])
        image = image[top : top + self.size, left : left + self.size]
        return to_tensor(image[:, ::-1] if self.random.rand() < 0.5 else image)


class Val:
    """torchvision: CenterCrop."""

    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        top, left = ((n - self.size) // 2 for n in image.shape[:2])
        return to_tensor(image[top : top + self.size, left : left + self.size])


def to_tensor(image):  # torchvision: ToTensor(), Normalize(MEAN, STD)
    return ((image / 255 - MEAN) / STD).astype(np.float32).transpose(2, 0, 1)


def criterion(model, images, target):
    output = model(images)
    return cross_entropy(output, target), output


def main(arguments=None):
    args = options(arguments)
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if args.make_data:
        write_image_folder(Path(args.data), args.make_data, args.size + 8)
    if args.distributed:
        dist.init_process_group()
        args.batch_size //= dist.get_world_size()
    args.rank = dist.get_rank() if args.distributed else 0
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    jax.config.update("jax_platforms", "cpu" if args.no_accel else None)
    generator = jaxpar.random.Generator(args.seed)

    train_dataset = ImageFolder(Path(args.data) / "train", Train(args.size, args.seed + args.rank))
    val_dataset = ImageFolder(Path(args.data) / "val", Val(args.size))

    classes = len(train_dataset.classes)
    model = resnet18(args.width, num_classes=classes, generator=generator, dtype=args.dtype)
    wrapper = jaxpar.DistributedDataParallel if args.distributed else jaxpar.DataParallel
    model = wrapper(model)

    optimizer = Optimizer(model, sgd(args.lr, momentum=args.momentum, weight_decay=args.weight_decay))
    step = jaxpar.train_step(model, optimizer, criterion, has_aux=True)
    evaluate = jaxpar.eval_step(model, criterion)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    checkpointer = jaxpar.Checkpointer(args.resume or os.path.join(args.out, "checkpoints"))
    if args.resume:
        args.start_epoch = checkpointer.resume(**state)
        print(f"going on at epoch {args.start_epoch}")

    train_sampler = DistributedSampler(train_dataset) if args.distributed else None
    val_sampler = DistributedSampler(val_dataset, shuffle=False, drop_last=True) if args.distributed else None
    train_loader = DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=train_sampler is None,
        num_workers=args.workers,
        sampler=train_sampler,
        seed=generator,
    )
    val_loader = DataLoader(
        val_dataset, batch_size=args.batch_size, num_workers=args.workers, sampler=val_sampler, seed=generator
    )

    if args.evaluate:
        return model, [validate(val_loader, evaluate, args)]

    numbers = []
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        numbers += train(train_loader, step, epoch, args)
        acc1 = validate(val_loader, evaluate, args)
        numbers.append(acc1)
        scheduler.step()

        if args.rank == 0:
            checkpointer.save(epoch, **state)
            checkpointer.save_best(epoch, acc1, mode="max", **state)
    checkpointer.close()
    if args.distributed:
        dist.destroy_process_group()
    return model.module, numbers


def train(train_loader, step, epoch, args):
    batch_time = AverageMeter("time", ":6.3f")
    data_time = AverageMeter("data", ":6.3f")
    losses = AverageMeter("loss", ":.4e")
    top1 = AverageMeter("acc@1", ":6.2f")
    top5 = AverageMeter("acc@5", ":6.2f")
    meters = [batch_time, data_time, losses, top1, top5]
    progress = ProgressMeter(len(train_loader), meters, prefix=f"epoch {epoch}: ")
    history = []

    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        loss, output = step(images, target)

        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), len(images))
        top1.update(acc1.item(), len(images))
        top5.update(acc5.item(), len(images))
        history.append(loss.item())

        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i + 1)
    return history


def validate(val_loader, evaluate, args):
    batch_time = AverageMeter("time", ":6.3f", Summary.NONE)
    losses = AverageMeter("loss", ":.4e", Summary.NONE)
    top1 = AverageMeter("acc@1", ":6.2f", Summary.AVERAGE)
    top5 = AverageMeter("acc@5", ":6.2f", Summary.AVERAGE)
    progress = ProgressMeter(len(val_loader), [batch_time, losses, top1, top5], prefix="test: ")

    def run_validate(loader, base=0):
        end = time.time()
        for i, (images, target) in enumerate(loader, base):
            loss, output = evaluate(images, target)

            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), len(images))
            top1.update(acc1.item(), len(images))
            top5.update(acc5.item(), len(images))

            batch_time.update(time.time() - end)
            end = time.time()
            if i % args.print_freq == 0:
                progress.display(i + 1)

    run_validate(val_loader)
    if args.distributed:
        top1.all_reduce()
        top5.all_reduce()
        world_size = dist.get_world_size()
        rest = range(len(val_loader.sampler) * world_size, len(val_loader.dataset))
        if len(rest):  # the sampler left these out
            rest_loader = DataLoader(Subset(val_loader.dataset, rest), batch_size=args.batch_size)
            run_validate(rest_loader, len(val_loader))
    progress.display_summary()
    return top1.avg


class Summary(Enum):
    NONE = 0
    AVERAGE = 1


class AverageMeter:
    """The last value and the mean of all."""

    def __init__(self, name, fmt=":f", summary_type=Summary.AVERAGE):
        self.name, self.fmt, self.summary_type = name, fmt, summary_type
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def all_reduce(self):
        self.sum, self.count = dist.all_reduce((self.sum, self.count))
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{} {" + self.fmt + "} ({" + self.fmt + "})").format(self.name, self.val, self.avg)

    def summary(self):
        return f"{self.name} {self.avg:.3f}" if self.summary_type is Summary.AVERAGE else ""


class ProgressMeter:
    def __init__(self, num_batches, meters, prefix=""):
        width = len(str(num_batches))
        self.batch = f"[{{:{width}d}}/{num_batches}]"
        self.meters, self.prefix = meters, prefix

    def display(self, batch):
        print("  ".join([self.prefix + self.batch.format(batch), *map(str, self.meters)]))

    def display_summary(self):
        print(" ".join([" *", *(meter.summary() for meter in self.meters)]))


def accuracy(output, target, topk=(1,)):
    """The share of rows, in percent, whose label is among the k largest outputs."""
    _, pred = jax.lax.top_k(output, max(topk))
    correct = np.asarray(pred) == target[:, None]
    return [100 * correct[:, :k].any(1).mean() for k in topk]


if __name__ == "__main__":
    main()
