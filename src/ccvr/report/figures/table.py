"""Every figure of a report: a row each."""

from dataclasses import dataclass

from ccvr.report.figures import cka, clients, heads, inversion, rounds, sweeps, tsne
from ccvr.report.figures.panel import Draw, of_each_run


@dataclass(frozen=True)
class FigureRow:
    """A figure: its section, its words, and the function that draws it; no panels mean that the runs lack its data."""

    id: str
    section: str
    title: str
    caption: str
    draw: Draw
    columns: int = 2
    """Panels side by side on a wide screen."""


CLIENTS, TRAINING, CALIBRATION = "The clients", "Training", "Calibration"
INSIDE, PRIVACY, COST = "Inside the models", "What features give away", "Cost"

FIGURES = (
    FigureRow(
        "labels",
        CLIENTS,
        "Who owns what",
        "Training samples of each client, by class.",
        clients.label_distributions,
        columns=3,
    ),
    FigureRow(
        "client-norms",
        CLIENTS,
        "Label mix and head of each client",
        "How much of a client's samples each class is; norms of the head's rows after the client's training in the "
        "first round and in the last; and in every round, over the mean of the head. Rows of classes that a client has "
        "tend to be longer: its head leans towards them. Of many clients and rounds some are drawn, first "
        "and last among them.",
        clients.clients_norms,
    ),
    FigureRow(
        "lean",
        CLIENTS,
        "How far the clients' heads lean, by round",
        "Correlation of a head's row norms with the client's samples of each class, and the norms' standard deviation "
        "over their mean; both are means over the round's clients, after their training.",
        clients.leans,
    ),
    FigureRow(
        "accuracy",
        TRAINING,
        "Accuracy by round",
        "The global model on the test set, before calibration.",
        rounds.accuracy,
    ),
    FigureRow(
        "loss",
        TRAINING,
        "Loss by round",
        "Of the global model on the test set, and the clients' mean during training, weighted by their samples.",
        rounds.losses,
    ),
    FigureRow(
        "heads",
        CALIBRATION,
        "Accuracy of every head",
        "On the test set; in brackets the gain over the trained head, in points. The dotted line is the trained head. "
        "Of more than 30 heads the first are drawn; the table above has all.",
        of_each_run(heads.accuracy),
        columns=3,
    ),
    FigureRow(
        "recall",
        CALIBRATION,
        "Recall of each class",
        "Before calibration and with the head that the run's model has. Classes without test samples are left out.",
        of_each_run(heads.recall),
        columns=3,
    ),
    FigureRow(
        "mixes",
        CALIBRATION,
        "Accuracy under the clients' own mixes",
        "Recalls weighted as each client has the classes: the mean over clients, the 10th percentile, the worst. "
        "Of more than seven heads the first are drawn.",
        of_each_run(heads.client_mixes),
        columns=3,
    ),
    FigureRow(
        "own",
        CALIBRATION,
        "Clients with models of their own",
        "Accuracy on the test set under each client's label mix: of the global model, under the heads that own models "
        "started from, and of the clients' own models. Of more than seven the first are drawn.",
        of_each_run(clients.own_models),
        columns=3,
    ),
    FigureRow(
        "confusion",
        CALIBRATION,
        "Confusion",
        "Which class is taken for which, in percent of the true class: the trained head, then the calibrated one.",
        of_each_run(heads.confusion),
    ),
    FigureRow(
        "norms",
        CALIBRATION,
        "Row norms of the global head",
        "Before and after calibration. Uneven norms favour some classes.",
        of_each_run(heads.norms),
        columns=3,
    ),
    FigureRow(
        "virtual",
        CALIBRATION,
        "More virtual features",
        "Calibrations that differ in the number of virtual features alone. Stars, where the run has the paper's data, "
        "network and clients: the paper after 100 rounds of 10 local epochs.",
        of_each_run(sweeps.virtual_features),
        columns=3,
    ),
    FigureRow(
        "clients",
        CALIBRATION,
        "More clients",
        "Runs that differ in the number of clients alone; means over seeds. Stars, where the runs have the paper's "
        "data and network: the paper after 100 rounds of 10 local epochs.",
        sweeps.clients,
    ),
    FigureRow(
        "amounts",
        CALIBRATION,
        "Calibration with real samples",
        "What raw features of some or all training samples would reach. Stars, where the run has the paper's data, "
        "network and clients: the paper after 100 rounds of 10 local epochs.",
        of_each_run(sweeps.amounts),
        columns=3,
    ),
    FigureRow(
        "separability",
        CALIBRATION,
        "Separability and gain",
        "How far apart the Gaussians of two classes are (sliced Wasserstein distance). Of several runs the mean, "
        "against what the calibrations gained that more than one of them has.",
        sweeps.separability_of,
    ),
    FigureRow(
        "cka",
        INSIDE,
        "Likeness of the clients' models, by layer",
        "Mean linear CKA over pairs of clients, each after one more round of local training. 1 is the same up to "
        "rotation and scale. In the paper the classifier has the lowest.",
        cka.means,
    ),
    FigureRow(
        "cka-pairs",
        INSIDE,
        "Likeness of every two clients",
        "Linear CKA in the first, a middle and the last layer.",
        cka.pairs,
        columns=3,
    ),
    FigureRow(
        "tsne",
        INSIDE,
        "Test features in the plane",
        "t-SNE of what enters the head. Where colours of the truth form groups that the prediction before misses, the "
        "features are good and the head is not. Of more than 2,000 points, 2,000 are drawn.",
        of_each_run(tsne.tsne),
        columns=3,
    ),
    FigureRow(
        "inversion",
        PRIVACY,
        "Pictures from features",
        "Images reconstructed from the mean of n features through the run's own model. The best of n similarities "
        "grows with n by itself, so compare with chance: n images that the mean is not of.",
        of_each_run(inversion.inversion),
    ),
    FigureRow(
        "time", COST, "Time by round", "Training, averaging and scoring on the machine named below.", rounds.times
    ),
)
