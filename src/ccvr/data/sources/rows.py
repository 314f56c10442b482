"""The table of data sets. A row of one's own is reached as package.module:name, without touching this file."""

from collections.abc import Callable
from pathlib import Path

from ccvr.core.tables import Table
from ccvr.data.samples import Dataset
from ccvr.data.sources.cifar import CIFAR10, CIFAR100, Cifar, binary_form, python_form
from ccvr.data.sources.cinic import CINIC10, cinic_form
from ccvr.data.sources.digits import DIGITS, read_digits
from ccvr.data.sources.idx import FASHION, MNIST, idx_form
from ccvr.data.sources.source import Contents, Embedded, Stored

# yann.lecun.com no longer serves MNIST; this copy, kept by the PyTorch project, has the published checksums.
MNIST_HOST = "https://ossci-datasets.s3.amazonaws.com/mnist"
FASHION_HOST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
CIFAR_HOST = "https://www.cs.toronto.edu/~kriz"
CINIC_HOST = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192"

MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
CIFAR10_MD5 = {
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
}
CIFAR100_MD5 = {
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
}


def _cifar(cifar: Cifar, description: str, md5: dict[str, str]) -> Stored:
    binary, python = md5
    forms = binary_form(cifar, binary), python_form(cifar, python)
    return Stored(cifar, description, forms, (f"{CIFAR_HOST}/{binary}",), md5)


def _idx(contents: Contents, description: str, folder: str, host: str, md5: dict[str, str]) -> Stored:
    return Stored(contents, description, (idx_form(contents, folder),), tuple(f"{host}/{file}" for file in md5), md5)


ROWS: tuple[Embedded | Stored, ...] = (
    Embedded(DIGITS, "8 x 8 handwritten digits, embedded", "scikit-learn", read_digits),
    _cifar(CIFAR10, "32 x 32 photographs, 10 classes", CIFAR10_MD5),
    _cifar(CIFAR100, "32 x 32 photographs, 100 classes", CIFAR100_MD5),
    Stored(
        CINIC10,
        "32 x 32 photographs, CIFAR-10's classes from ImageNet too",
        (cinic_form(CINIC10),),
        (f"{CINIC_HOST}/CINIC-10.tar.gz",),
    ),
    _idx(MNIST, "28 x 28 handwritten digits", "MNIST/raw", MNIST_HOST, MNIST_MD5),
    _idx(FASHION, "28 x 28 pictures of clothes, 10 kinds", "FashionMNIST/raw", FASHION_HOST, FASHION_MD5),
)

SOURCES: Table[Callable[[Path | None], Dataset]] = Table("data set", {row.contents.name: row for row in ROWS})
