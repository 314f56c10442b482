"""The client: trains, evaluates, and answers the calibration."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import ccvr.flower  # calibration
from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()


def data_of(context: Context):
    config = context.node_config
    return load_data(config["partition-id"], config["num-partitions"], context.run_config["batch-size"])


@app.train()
def train(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    trainloader, _ = data_of(context)
    loss = train_fn(model, trainloader, context.run_config["local-epochs"], context.run_config["learning-rate"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, testloader = data_of(context)
    metrics = MetricRecord({"accuracy": test_fn(model, testloader), "num-examples": len(testloader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def load(context: Context):  # calibration
    return Net(), *data_of(context)  # calibration


ccvr.flower.register(app, load)  # calibration
