"""The server of our own runs, as Flower starts it beside the SuperLink: the usual pipeline with Flower's clients."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid

from ccvr.core.errors import CcvrError, SpecError, printable
from ccvr.core.fields import build, plain
from ccvr.core.run import RunFolder
from ccvr.core.terminal import MAX_LINE
from ccvr.experiment.events import Event
from ccvr.experiment.pipeline import resume, start
from ccvr.experiment.presets import find_spec
from ccvr.experiment.spec import Spec, from_toml
from ccvr.flower.engine import FlowerEngine
from ccvr.flower.log_protocol import MARK, as_json, in_words

OWN = ("spec", "out", "overwrite", "resume", "trust", "events", "command")
"""Keys of the run's configuration; all others are fields of the spec."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run from its spec to its run folder."""
    config = context.run_config
    path = Path(str(config["out"]))
    sys.argv = json.loads(str(config["command"]))  # a run keeps its command, and Flower's own holds a token
    sys.path.append(os.getcwd())  # package.module:name may lie here; last, so that it shadows nothing

    simulated = isinstance(grid, InMemoryGrid)
    engine = partial(FlowerEngine.connect, grid, simulated=simulated)

    def say(what: Event | CcvrError) -> None:
        # In one piece: Flower's own threads write to the same log.
        token = str(config["events"])
        sys.stdout.write(
            f"{token} {as_json(what)}\n" if token else f"{MARK}{printable(in_words(what, path), MAX_LINE)}\n"
        )
        sys.stdout.flush()

    try:
        if flag_of(config, "resume"):
            events = resume(RunFolder.open(path, trust=trust_of(config)), engine=engine)
        else:
            spec = spec_of(config)
            if not simulated and spec.training.step == "auto":  # clients on other machines may not have the kernels
                spec = replace(spec, training=replace(spec.training, step="torch"))
            events = start(spec, path, overwrite=flag_of(config, "overwrite"), engine=engine)
        for event in events:
            say(event)
    except CcvrError as error:
        say(error)
        raise


def flag_of(config: Mapping[str, Any], name: str) -> bool:
    """A flag of the configuration; a text is refused, because every text counts as true."""
    if type(config[name]) is not bool:
        raise SpecError(f'{name} is "{config[name]}". Give true or false, without quotes.')
    return bool(config[name])


def trust_of(config: Mapping[str, Any]) -> bool:
    """Whether files on this machine may name code that is not ours."""
    return "trust" in config and flag_of(config, "trust")


def spec_of(config: Mapping[str, Any]) -> Spec:
    """The spec that a run's configuration says: a preset, or a spec as TOML, with single fields changed.

    The configuration is the wish of the user who starts the run, and so is the code that it names.
    """
    text = str(config["spec"])
    fields = plain(from_toml(text, trust=True) if "=" in text else find_spec(text, trust=trust_of(config)))
    for name, value in config.items():
        if name not in OWN and value != "":
            *sections, last = name.replace("-", "_").split(".")
            table = fields
            for section in sections:
                table = table.setdefault(section, {})
            table[last] = value.split() if isinstance(table.get(last), list) and isinstance(value, str) else value
    return replace(build(Spec, fields), engine="flower")
