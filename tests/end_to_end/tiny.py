"""A run that takes a second: two clients' worth of everything. On torch: kernels would take longer to compile."""

from ccvr.algorithms.spec import TrainingSpec
from ccvr.calibration.spec import CalibrationSpec
from ccvr.data.spec import DataSpec, PartitionSpec
from ccvr.experiment.spec import CheckpointSpec, Spec

TINY = Spec(
    threads=1,
    workers=1,
    data=DataSpec(validation=0.15),
    partition=PartitionSpec(num_clients=4, alpha=0.5),
    training=TrainingSpec(algorithm="moon", rounds=4, local_epochs=1, client_fraction=0.75, step="torch"),
    calibration=CalibrationSpec(
        methods=(
            "ccvr,num_virtual=50",
            "ccvr,num_virtual=50,transform=tukey,label=t1",
            "oracle",
            "oracle-partial,per_class=5",
        )
    ),
    checkpoint=CheckpointSpec(every=2),
)
