"""Federated text classification: a data set of token ids, a small transformer, and a run of both.

Run this file, or name its two functions from the folder that holds it:

    ccvr run --data.name tokens:commands --model.name tokens:transformer --partition.alpha 0.1
"""

import torch
from torch import nn

import ccvr
from ccvr.data.samples import Dataset, Samples
from ccvr.experiment.spec import from_mapping

CLASSES = ("weather", "music", "travel", "banking", "cooking")
VOCABULARY, LENGTH, PADDING = 80, 12, 0


def commands(root):
    """Made-up commands: each class has ten words of its own, which other words surround."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(1500) % len(CLASSES)
    own = 1 + 10 * labels.unsqueeze(1) + torch.randint(0, 10, (1500, LENGTH), generator=rng)
    others = torch.randint(1, VOCABULARY, (1500, LENGTH), generator=rng)
    ids = torch.where(torch.rand(1500, LENGTH, generator=rng) < 0.25, own, others)
    lengths = torch.randint(5, LENGTH + 1, (1500, 1), generator=rng)
    ids = torch.where(torch.arange(LENGTH) < lengths, ids, PADDING)
    return Dataset(Samples(ids[:1000], labels[:1000]), Samples(ids[1000:], labels[1000:]), CLASSES)


class Transformer(nn.Module):
    """Embeddings, one layer of self-attention, the mean over the tokens, a linear head."""

    def __init__(self, length, num_classes, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.encoder = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, num_classes)

    def forward(self, ids):
        padding = ids == PADDING
        padding = padding & ~padding.all(1, keepdim=True)  # attention to nothing is not a number
        tokens = self.encoder(self.embed(ids) + self.places, src_key_padding_mask=padding)
        weights = (~padding).float().unsqueeze(2)
        return self.head((tokens * weights).sum(1) / weights.sum(1))


def transformer(shape, num_classes):
    (length,) = shape
    return Transformer(length, num_classes)


if __name__ == "__main__":
    spec = from_mapping(
        {
            "data": {"name": "tokens:commands"},
            "model": {"name": "tokens:transformer"},
            "partition": {"num_clients": 5, "alpha": 0.1},
            "training": {"rounds": 10, "local_epochs": 2, "lr": 0.1},
            "calibration": {"methods": ["ccvr", "lda"]},
        }
    )
    results = ccvr.run(spec, "runs/tokens", overwrite=True)
    for head, accuracy in results["accuracy"].items():
        print(f"{head:>14} {accuracy:5.1f} %")
