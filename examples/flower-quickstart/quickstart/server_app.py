"""The server: trains with FedAvg, saves the model, calibrates it and saves that one, too."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import ccvr.flower  # calibration
from quickstart.task import Net, load_server_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=context.run_config["num-server-rounds"]
    )
    model, folder = Net(), Path(context.run_config["folder"])
    model.load_state_dict(result.arrays.to_torch_state_dict())
    torch.save(model.state_dict(), folder / "final_model.pt")
    print(f"trained: {test(model, load_server_data()):.1%} of the server's test images")

    example, number = torch.zeros(1, 1, 8, 8), context.run_config["num-clients"]  # calibration
    found = ccvr.flower.calibrate(grid, model, example, num_clients=number, validate=True)  # calibration
    print(found)  # calibration: the method, who is missing, what the validation said
    torch.save(found.model.state_dict(), folder / "calibrated_model.pt")  # calibration
    print(f"calibrated: {test(found.model, load_server_data()):.1%}")  # calibration
