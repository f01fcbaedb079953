"""A folder of images and a ResNet-18, in torch: the program of
https://github.com/pytorch/examples/tree/main/imagenet in words of our own.

    python examples/ports/imagenet_torch.py DIR
    torchrun --nproc-per-node 2 examples/ports/imagenet_torch.py DIR

DIR has the folders train and val, and in each a folder for every class; --make-data writes a small one.
"""

import argparse
import os
import shutil
import time
from enum import Enum
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from data import ImageFolder, write_image_folder
from resnet_torch import resnet18
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, Subset

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
    return torch.tensor((image / 255 - MEAN) / STD, dtype=torch.float32).permute(2, 0, 1)


def main(arguments=None):
    args = options(arguments)
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if args.make_data:
        write_image_folder(Path(args.data), args.make_data, args.size + 8)
    if args.distributed:
        dist.init_process_group(backend="gloo")
        args.batch_size //= dist.get_world_size()
    args.rank = dist.get_rank() if args.distributed else 0
    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(args.seed)
    args.device = torch.device("cuda" if torch.cuda.is_available() and not args.no_accel else "cpu")

    train_dataset = ImageFolder(Path(args.data) / "train", Train(args.size, args.seed + args.rank))
    val_dataset = ImageFolder(Path(args.data) / "val", Val(args.size))

    model = resnet18(args.width, num_classes=len(train_dataset.classes)).to(args.device)
    wrapper = nn.parallel.DistributedDataParallel if args.distributed else nn.DataParallel
    model = wrapper(model)

    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)

    best_acc1 = 0.0
    if args.resume:
        checkpoint = torch.load(args.resume)
        args.start_epoch = checkpoint["epoch"]
        best_acc1 = checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(f"going on at epoch {args.start_epoch}")

    train_sampler = DistributedSampler(train_dataset) if args.distributed else None
    val_sampler = DistributedSampler(val_dataset, shuffle=False, drop_last=True) if args.distributed else None
    train_loader = DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=train_sampler is None,
        num_workers=args.workers,
        sampler=train_sampler,
    )
    val_loader = DataLoader(
        val_dataset, batch_size=args.batch_size, num_workers=args.workers, sampler=val_sampler
    )

    if args.evaluate:
        return model, [validate(val_loader, model, criterion, args)]

    numbers = []
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        numbers += train(train_loader, model, criterion, optimizer, epoch, args)
        acc1 = validate(val_loader, model, criterion, args)
        numbers.append(acc1)
        scheduler.step()

        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if args.rank == 0:
            checkpoint = {
                "epoch": epoch + 1,
                "model": model.state_dict(),
                "best_acc1": best_acc1,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            }
            save_checkpoint(checkpoint, is_best, args.out)
    if args.distributed:
        dist.destroy_process_group()
    return model.module, numbers


def train(train_loader, model, criterion, optimizer, epoch, args):
    batch_time = AverageMeter("time", ":6.3f")
    data_time = AverageMeter("data", ":6.3f")
    losses = AverageMeter("loss", ":.4e")
    top1 = AverageMeter("acc@1", ":6.2f")
    top5 = AverageMeter("acc@5", ":6.2f")
    meters = [batch_time, data_time, losses, top1, top5]
    progress = ProgressMeter(len(train_loader), meters, prefix=f"epoch {epoch}: ")
    history = []

    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        images = images.to(args.device, torch.get_default_dtype(), non_blocking=True)
        target = target.to(args.device, non_blocking=True)

        output = model(images)
        loss = criterion(output, target)

        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), len(images))
        top1.update(acc1.item(), len(images))
        top5.update(acc5.item(), len(images))
        history.append(loss.item())

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i + 1)
    return history


def validate(val_loader, model, criterion, args):
    batch_time = AverageMeter("time", ":6.3f", Summary.NONE)
    losses = AverageMeter("loss", ":.4e", Summary.NONE)
    top1 = AverageMeter("acc@1", ":6.2f", Summary.AVERAGE)
    top5 = AverageMeter("acc@5", ":6.2f", Summary.AVERAGE)
    progress = ProgressMeter(len(val_loader), [batch_time, losses, top1, top5], prefix="test: ")

    def run_validate(loader, base=0):
        end = time.time()
        for i, (images, target) in enumerate(loader, base):
            images = images.to(args.device, torch.get_default_dtype(), non_blocking=True)
            target = target.to(args.device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)

            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), len(images))
            top1.update(acc1.item(), len(images))
            top5.update(acc5.item(), len(images))

            batch_time.update(time.time() - end)
            end = time.time()
            if i % args.print_freq == 0:
                progress.display(i + 1)

    model.eval()
    with torch.no_grad():
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


def save_checkpoint(state, is_best, folder):
    path = os.path.join(folder, "checkpoint.pt")
    torch.save(state, path)
    if is_best:
        shutil.copyfile(path, os.path.join(folder, "model_best.pt"))


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
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total)
        self.sum, self.count = total.tolist()
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
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred == target[:, None]
        return [100 * correct[:, :k].any(1).double().mean() for k in topk]


if __name__ == "__main__":
    main()
